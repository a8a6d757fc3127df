#include "gateway/limits.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <ctime>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "store/data_folder.h"

namespace verbatim::gateway {
namespace {

using policies::Budget;
using policies::Period;
using policies::RateLimits;

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kMinute = 60 * kSecond;
// Counts of tokens are cut here, so that no sum leaves 64 bits.
constexpr uint64_t kMost = 10'000'000'000;
// Scopes beyond this number are dropped where dropping them forgets nothing.
constexpr size_t kManyScopes = 10'000;
constexpr uint64_t kFileFormat = 2;    // 1 had no keys
constexpr uint64_t kSlackParts = 100;  // of a budget, that a file written on the way adds

int64_t DivideUp(int64_t a, int64_t b) { return a <= 0 ? 0 : (a - 1) / b + 1; }

// A minute's worth that refills evenly. The level is held in 60,000,000ths, so that a microsecond
// adds exactly the limit: integers only, no drift.
class Bucket {
 public:
  void SetLimit(uint64_t per_minute, int64_t now) {
    const auto limit = static_cast<int64_t>(std::min(per_minute, kMost));
    if (limit == limit_) return;
    level_ += (limit - limit_) * kMinute;
    if (limit_ == 0) last_ = now;
    limit_ = limit;
  }
  bool is_set() const { return limit_ > 0; }
  int64_t limit() const { return limit_; }

  void Refill(int64_t now) {
    if (now <= last_) return;
    const auto filled =
        static_cast<__int128>(level_) + static_cast<__int128>(limit_) * (now - last_);
    level_ = static_cast<int64_t>(std::min<__int128>(filled, Full()));
    last_ = now;
  }
  bool Has(uint64_t n) const { return level_ >= Scaled(n); }
  bool IsFull() const { return level_ >= Full(); }
  void Take(uint64_t n) {
    if (is_set()) level_ = std::max(level_ - Scaled(n), -Full() - Scaled(kMost));
  }
  void GiveBack(uint64_t n) {
    if (is_set()) level_ = std::min(level_ + Scaled(n), Full());
  }

  int64_t remaining() const { return std::max<int64_t>(level_, 0) / kMinute; }
  // Until it is full, and until it has n.
  int64_t FullIn() const { return DivideUp(Full() - level_, limit_); }
  int64_t HasIn(uint64_t n) const { return DivideUp(Scaled(n) - level_, limit_); }

 private:
  static int64_t Scaled(uint64_t n) { return static_cast<int64_t>(std::min(n, kMost)) * kMinute; }
  int64_t Full() const { return limit_ * kMinute; }

  int64_t limit_ = 0;  // 0: none
  int64_t level_ = 0;
  int64_t last_ = 0;
};

// "2026-11-30" or "2026-11": which day or month of UTC it is.
std::string PeriodName(Period per, int64_t now) {
  return FormatTime(std::max<int64_t>(now, 0)).substr(0, per == Period::kDay ? 10 : 7);
}

// "2026-12-01": the first day on which the budget is whole again.
std::string NextPeriod(Period per, int64_t now) {
  std::time_t seconds = std::max<int64_t>(now, 0) / kSecond;
  std::tm day{};
  gmtime_r(&seconds, &day);
  day.tm_hour = day.tm_min = day.tm_sec = 0;
  if (per == Period::kDay) {
    ++day.tm_mday;
  } else {
    day.tm_mday = 1;
    ++day.tm_mon;
  }
  return FormatTime(static_cast<int64_t>(timegm(&day)) * kSecond).substr(0, 10);
}

// What one key or one tenant has used.
struct Scope {
  void Configure(const RateLimits& limits, const Budget& next_budget, int64_t now) {
    requests.SetLimit(limits.requests_per_minute, now);
    tokens.SetLimit(limits.tokens_per_minute, now);
    concurrent = limits.concurrent;
    budget = next_budget;
    requests.Refill(now);
    tokens.Refill(now);
    StartPeriod(now);
  }
  // A clock that goes back does not give an old period's budget again.
  void StartPeriod(int64_t now) {
    std::string name = PeriodName(budget.per, now);
    if (name == period || (name.size() == period.size() && name < period)) return;
    period = std::move(name);
    spent = 0;
  }
  bool Forgettable() const {
    return running == 0 && reserved == 0 && spent == 0 && requests.IsFull() && tokens.IsFull();
  }

  Bucket requests, tokens;
  uint64_t concurrent = 0, running = 0;
  Budget budget;
  std::string period;
  uint64_t spent = 0, reserved = 0;
};

HttpError TooMany(std::string message, std::string type, int64_t wait_micros) {
  HttpError error;
  error.status = 429;
  error.message = std::move(message);
  error.type = std::move(type);
  error.code = "rate_limit_exceeded";
  const int64_t wait = std::max<int64_t>(wait_micros, 1);
  error.headers = {{"retry-after", std::to_string(DivideUp(wait, kSecond))},
                   {"retry-after-ms", std::to_string(DivideUp(wait, 1000))}};
  return error;
}

HttpError BucketEmpty(const Bucket& bucket, const char* unit, uint64_t asked,
                      const std::string& whose) {
  const std::string limit = "Limit " + std::to_string(bucket.limit()) + ", remaining " +
                            std::to_string(bucket.remaining()) + ", requested " +
                            std::to_string(asked) + ".";
  if (asked > static_cast<uint64_t>(bucket.limit())) {
    HttpError error =
        TooMany("This request is larger than the " + whose + "'s limit of " + unit +
                    " per minute. " + limit + " Ask for fewer tokens, or shorten the prompt.",
                unit, kMinute);
    error.headers = {{"x-should-retry", "false"}};
    return error;
  }
  const int64_t wait = bucket.HasIn(asked);
  return TooMany("Rate limit reached for the " + whose + ", " + unit + " per minute. " + limit +
                     " Please try again in " + FormatReset(wait) + ".",
                 unit, wait);
}

HttpError NoBudget(const Scope& scope, const std::string& whose, uint64_t tokens, int64_t now) {
  HttpError error;
  error.status = 429;
  error.message = "The " + whose + "'s budget of " + std::to_string(scope.budget.tokens) +
                  " tokens per " + std::string(policies::NameOf(scope.budget.per)) +
                  " does not allow this request, which may take up to " + std::to_string(tokens) +
                  ": " + std::to_string(scope.spent) + " are spent and " +
                  std::to_string(scope.reserved) + " reserved. " +
                  (tokens > scope.budget.tokens
                       ? "It is more than the whole budget: set max_tokens, or shorten the prompt."
                       : "It is whole again on " + NextPeriod(scope.budget.per, now) +
                             " (UTC); until then set max_tokens to what is left.");
  error.type = "insufficient_quota";
  error.code = "insufficient_quota";
  error.headers = {{"x-should-retry", "false"}};
  return error;
}

std::optional<HttpError> TokensRefused(const Scope& scope, const char* whose, uint64_t tokens,
                                       int64_t now) {
  if (tokens == 0) return std::nullopt;
  if (scope.tokens.is_set() && !scope.tokens.Has(tokens)) {
    return BucketEmpty(scope.tokens, "tokens", tokens, whose);
  }
  const uint64_t budget = scope.budget.tokens;
  if (budget != 0 && scope.spent + scope.reserved + std::min(tokens, kMost) > budget) {
    return NoBudget(scope, whose, tokens, now);
  }
  return std::nullopt;
}

std::optional<HttpError> RequestRefused(const Scope& scope, const char* whose) {
  if (scope.concurrent != 0 && scope.running >= scope.concurrent) {
    return TooMany("The " + std::string(whose) + " has its limit of " +
                       std::to_string(scope.concurrent) +
                       " requests at once running. Try again when one is done.",
                   "requests", kSecond);
  }
  if (scope.requests.is_set() && !scope.requests.Has(1)) {
    return BucketEmpty(scope.requests, "requests", 1, whose);
  }
  return std::nullopt;
}

void AddHeaders(const Bucket* bucket, const std::string& unit, Headers& headers) {
  if (bucket == nullptr) return;
  headers.emplace_back("x-ratelimit-limit-" + unit, std::to_string(bucket->limit()));
  headers.emplace_back("x-ratelimit-remaining-" + unit, std::to_string(bucket->remaining()));
  headers.emplace_back("x-ratelimit-reset-" + unit, FormatReset(bucket->FullIn()));
}

constexpr const char* kWhose[] = {"key", "tenant"};
constexpr size_t kScopes = 2;
using Scopes = std::array<std::shared_ptr<Scope>, kScopes>;  // of the key, of the tenant; or null

Headers LimitHeaders(const Scopes& scopes) {
  const Bucket* requests = nullptr;
  const Bucket* tokens = nullptr;
  const auto nearer = [](const Bucket*& best, const Bucket& b) {
    if (b.is_set() && (best == nullptr || b.remaining() < best->remaining())) best = &b;
  };
  for (const auto& scope : scopes) {
    if (!scope) continue;
    nearer(requests, scope->requests);
    nearer(tokens, scope->tokens);
  }
  Headers headers;
  AddHeaders(requests, "requests", headers);
  AddHeaders(tokens, "tokens", headers);
  return headers;
}

uint64_t SumCut(uint64_t a, uint64_t b) {
  return std::min(std::min(a, kMost) + std::min(b, kMost), kMost);
}

uint64_t ProductCut(uint64_t a, uint64_t b) {
  return a != 0 && b > kMost / a ? kMost : std::min(a * b, kMost);
}

using ScopeMap = std::map<std::string, std::shared_ptr<Scope>>;

// {NAME: {"period": "2026-12", "spent": 5}}; false where it is none.
bool ReadSpent(const json::Value* list, ScopeMap& out) {
  if (!list || !list->is_object()) return false;
  for (const auto& [name, entry] : list->members()) {
    const json::Value* period = entry.Find("period");
    const json::Value* spent = entry.Find("spent");
    if (!period || !period->is_string() || !spent || !spent->AsUint64()) return false;
    auto scope = std::make_shared<Scope>();
    scope->period = period->as_string();
    scope->spent = std::min(*spent->AsUint64(), std::numeric_limits<uint64_t>::max() / 4);
    out[name] = std::move(scope);
  }
  return true;
}

// While the server runs the file says more than was spent: what is reserved, and a hundredth of the
// budget for what passes until it is written again.
json::Value Spent(const ScopeMap& scopes, bool at_end) {
  json::Value list = json::Value::MakeObject();
  for (const auto& [name, scope] : scopes) {
    if (scope->budget.tokens == 0 && scope->spent == 0) continue;
    const uint64_t more = at_end ? 0 : scope->reserved + scope->budget.tokens / kSlackParts;
    list.Set(name, json::Object{{"period", scope->period}, {"spent", scope->spent + more}});
  }
  return list;
}

}  // namespace

uint64_t EstimateTokens(const json::Value& request, uint64_t body_bytes, uint64_t open_length) {
  uint64_t length = 0;
  bool named = false;
  for (const char* field : {"max_tokens", "max_completion_tokens", "max_output_tokens"}) {
    const json::Value* v = request.Find(field);
    const auto n = v ? v->AsUint64() : std::nullopt;
    if (!n) continue;
    length = std::max(length, *n);
    named = true;
  }
  uint64_t choices = 1;
  for (const char* field : {"n", "best_of"}) {
    const json::Value* v = request.Find(field);
    const auto n = v ? v->AsUint64() : std::nullopt;
    if (n) choices = std::max(choices, *n);
  }
  const json::Value* prompt = request.Find("prompt");
  if (prompt && prompt->is_array() && !prompt->items().empty() &&
      !prompt->items().front().is_number()) {
    choices = ProductCut(choices, prompt->items().size());
  }
  return SumCut(ProductCut(choices, named ? length : open_length), body_bytes / 4);
}

std::string FormatReset(int64_t micros) {
  int64_t millis = DivideUp(micros, 1000);
  if (millis == 0) return "0s";
  if (millis < 1000) return std::to_string(millis) + "ms";
  std::string out;
  const int64_t hours = millis / 3'600'000, minutes = millis / 60'000 % 60;
  if (hours > 0) out += std::to_string(hours) + "h";
  if (hours > 0 || minutes > 0) out += std::to_string(minutes) + "m";
  out += std::to_string(millis / 1000 % 60);
  if (millis % 1000 != 0) {
    std::string fraction = std::to_string(1000 + millis % 1000).substr(1);
    while (fraction.back() == '0') fraction.pop_back();
    out += "." + fraction;
  }
  return out + "s";
}

struct Ticket::Hold {
  Limiter::State* state = nullptr;
  Scopes scopes;
  uint64_t reserved = 0;
  bool settled = false;
};

struct Limiter::State {
  Scopes Find(const Principal& principal, int64_t now);  // mutex is held
  Status Load();
  Status Save(bool at_end);
  void Run();

  void Settle(Ticket::Hold& hold, uint64_t tokens, int64_t now);
  void Release(Ticket::Hold& hold);
  void Tell(size_t scope, const Scope& refused_by, const HttpError& refusal) const;

  std::string file;
  std::function<void(std::string_view, std::string_view)> on_refused;
  std::atomic<bool> has_tenants = false;

  std::mutex mutex;  // guards what follows
  policies::Tenants tenants;
  ScopeMap by_key, by_tenant;
  bool dirty = false;
  bool stop = false;
  std::condition_variable wake;

  std::mutex saving;  // one writer of the file
  std::thread thread;
};

Scopes Limiter::State::Find(const Principal& principal, int64_t now) {
  Scopes out;
  const auto at = [now](auto& map, const std::string& name, const RateLimits& limits,
                        const Budget& budget) {
    if (map.size() > kManyScopes) {
      std::erase_if(map, [now](auto& entry) {
        entry.second->requests.Refill(now);
        entry.second->tokens.Refill(now);
        return entry.second->Forgettable();
      });
    }
    std::shared_ptr<Scope>& scope = map[name];
    if (!scope) scope = std::make_shared<Scope>();
    scope->Configure(limits, budget, now);
    return scope;
  };
  const Grant* grant = principal.grant.get();
  if (grant && (grant->limits.any() || grant->budget.tokens != 0)) {
    out[0] = at(by_key, principal.key_id, grant->limits, grant->budget);
  }
  const policies::TenantConfig* tenant = policies::FindTenant(tenants, principal.tenant);
  if (tenant && (tenant->limits.any() || tenant->budget.tokens != 0)) {
    out[1] = at(by_tenant, principal.tenant, tenant->limits, tenant->budget);
  }
  return out;
}

void Limiter::State::Settle(Ticket::Hold& hold, uint64_t tokens, int64_t now) {
  const std::lock_guard lock(mutex);
  tokens = std::min(tokens, kMost);
  for (const auto& scope : hold.scopes) {
    if (!scope) continue;
    scope->tokens.Refill(now);
    scope->tokens.GiveBack(hold.reserved);
    scope->tokens.Take(tokens);
    scope->StartPeriod(now);
    scope->reserved -= hold.reserved;
    scope->spent += tokens;
    dirty |= scope->budget.tokens != 0;
  }
  hold.reserved = 0;
  hold.settled = true;
}

void Limiter::State::Release(Ticket::Hold& hold) {
  const std::lock_guard lock(mutex);
  for (const auto& scope : hold.scopes) {
    if (!scope) continue;
    --scope->running;
    scope->tokens.GiveBack(hold.reserved);
    scope->reserved -= hold.reserved;
  }
}

Status Limiter::State::Load() {
  const Result<std::string> text = store::ReadFile(file);
  if (!text) return text.error().code == Code::kNotFound ? Status() : Status(text.error());
  const Error broken{Code::kCorrupt, file +
                                         " does not hold spent budgets as this server writes them; "
                                         "restore it, or delete it to begin with whole budgets"};
  const auto value = json::Parse(*text);
  if (!value) return broken;
  const json::Value* version = value->Find("version");
  const uint64_t format = version ? version->AsUint64().value_or(0) : 0;
  if (format != 1 && format != kFileFormat) return broken;
  if (!ReadSpent(value->Find("tenants"), by_tenant)) return broken;
  if (format != 1 && !ReadSpent(value->Find("keys"), by_key)) return broken;
  return {};
}

Status Limiter::State::Save(bool at_end) {
  if (file.empty()) return {};
  const std::lock_guard writer(saving);
  json::Value whole = json::Object{{"version", kFileFormat}};
  {
    const std::lock_guard lock(mutex);
    whole.Set("tenants", Spent(by_tenant, at_end));
    whole.Set("keys", Spent(by_key, at_end));
    dirty = false;
  }
  Status written = store::WriteFileDurably(file, json::Serialize(whole) + "\n");
  if (!written.ok()) {
    const std::lock_guard lock(mutex);
    dirty = true;
  }
  return written;
}

void Limiter::State::Run() {
  std::unique_lock lock(mutex);
  bool failing = false;
  while (!wake.wait_for(lock, std::chrono::seconds(1), [this] { return stop; })) {
    if (!dirty) continue;
    lock.unlock();
    const Status saved = Save(false);
    if (!saved.ok() && !failing)
      LogError("spent budgets are not written: " + saved.error().message);
    failing = !saved.ok();
    lock.lock();
  }
}

Ticket::Ticket() = default;
Ticket::~Ticket() {
  if (hold_) hold_->state->Release(*hold_);
}
Ticket::Ticket(Ticket&& other) noexcept = default;
Ticket& Ticket::operator=(Ticket&& other) noexcept {
  std::swap(hold_, other.hold_);
  return *this;
}

void Ticket::SettleReserved(int64_t now_micros) {
  if (hold_) Settle(hold_->reserved, now_micros);
}

void Ticket::Settle(uint64_t tokens, int64_t now_micros) {
  if (!hold_) return;
  CHECK(!hold_->settled);
  hold_->state->Settle(*hold_, tokens, now_micros);
}

Limiter::Limiter(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Limiter>> Limiter::Open(policies::Tenants tenants,
                                               const std::string& budgets_file) {
  auto state = std::make_unique<State>();
  state->file = budgets_file;
  if (!budgets_file.empty()) {
    if (Status loaded = state->Load(); !loaded.ok()) return loaded.error();
  }
  std::unique_ptr<Limiter> limiter(new Limiter(std::move(state)));
  limiter->Replace(std::move(tenants));
  if (!budgets_file.empty()) {
    if (Status saved = limiter->Save(); !saved.ok()) return saved.error();
    State* raw = limiter->state_.get();
    raw->thread = std::thread([raw] { raw->Run(); });
  }
  return limiter;
}

Limiter::~Limiter() {
  if (!state_->thread.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
  const Status saved = state_->Save(true);
  if (!saved.ok()) LogError("spent budgets are not written: " + saved.error().message);
}

// Which limit it was follows from what the refusal says.
void Limiter::State::Tell(size_t scope, const Scope& refused_by, const HttpError& refusal) const {
  if (!on_refused) return;
  std::string_view limit = refusal.type == "tokens" ? "tokens" : "requests";
  if (refusal.code == "insufficient_quota") limit = "budget";
  const bool full = refused_by.concurrent != 0 && refused_by.running >= refused_by.concurrent;
  if (limit == "requests" && full) limit = "concurrent";
  on_refused(kWhose[scope], limit);
}

void Limiter::OnRefused(std::function<void(std::string_view, std::string_view)> callback) {
  state_->on_refused = std::move(callback);
}

Allowance Limiter::Admit(const Principal& principal, uint64_t estimated_tokens,
                         int64_t now_micros) {
  Allowance admission;
  if (!state_->has_tenants && !principal.grant) return admission;
  const std::lock_guard lock(state_->mutex);
  const Scopes scopes = state_->Find(principal, now_micros);
  if (!scopes[0] && !scopes[1]) return admission;
  for (size_t i = 0; i < kScopes && !admission.refusal; ++i) {
    if (!scopes[i]) continue;
    admission.refusal = RequestRefused(*scopes[i], kWhose[i]);
    if (admission.refusal) state_->Tell(i, *scopes[i], *admission.refusal);
  }
  for (size_t i = 0; i < kScopes && !admission.refusal; ++i) {
    if (!scopes[i]) continue;
    admission.refusal = TokensRefused(*scopes[i], kWhose[i], estimated_tokens, now_micros);
    if (admission.refusal) state_->Tell(i, *scopes[i], *admission.refusal);
  }
  if (admission.refusal) {
    for (auto& header : LimitHeaders(scopes)) {
      admission.refusal->headers.push_back(std::move(header));
    }
    return admission;
  }
  const uint64_t reserved = std::min(estimated_tokens, kMost);
  for (const auto& scope : scopes) {
    if (!scope) continue;
    scope->requests.Take(1);
    scope->tokens.Take(reserved);
    scope->reserved += reserved;
    ++scope->running;
    state_->dirty |= reserved != 0 && scope->budget.tokens != 0;
  }
  admission.headers = LimitHeaders(scopes);
  admission.ticket.hold_ = std::make_unique<Ticket::Hold>();
  admission.ticket.hold_->state = state_.get();
  admission.ticket.hold_->scopes = scopes;
  admission.ticket.hold_->reserved = reserved;
  return admission;
}

std::optional<HttpError> Limiter::Reserve(Ticket& ticket, uint64_t estimated_tokens,
                                          int64_t now_micros) {
  if (!ticket.hold_) return std::nullopt;
  Ticket::Hold& hold = *ticket.hold_;
  CHECK(!hold.settled);
  const uint64_t tokens = std::min(estimated_tokens, kMost);
  const std::lock_guard lock(state_->mutex);
  for (size_t i = 0; i < kScopes; ++i) {
    if (!hold.scopes[i]) continue;
    hold.scopes[i]->tokens.Refill(now_micros);
    hold.scopes[i]->StartPeriod(now_micros);
    auto refusal = TokensRefused(*hold.scopes[i], kWhose[i], tokens, now_micros);
    if (!refusal) continue;
    state_->Tell(i, *hold.scopes[i], *refusal);
    for (auto& header : LimitHeaders(hold.scopes)) refusal->headers.push_back(std::move(header));
    return refusal;
  }
  for (const auto& scope : hold.scopes) {
    if (!scope) continue;
    scope->tokens.Take(tokens);
    scope->reserved += tokens;
    state_->dirty |= scope->budget.tokens != 0;
  }
  hold.reserved += tokens;
  return std::nullopt;
}

void Limiter::Replace(policies::Tenants tenants) {
  const std::lock_guard lock(state_->mutex);
  state_->tenants = std::move(tenants);
  state_->has_tenants = !state_->tenants.empty();
  const int64_t now = NowMicros();
  for (const auto& [name, tenant] : state_->tenants) {
    if (name == "*" || tenant.budget.tokens == 0) continue;
    std::shared_ptr<Scope>& scope = state_->by_tenant[name];
    if (!scope) scope = std::make_shared<Scope>();
    scope->budget = tenant.budget;
    scope->StartPeriod(now);
  }
}

Status Limiter::Save() { return state_->Save(false); }

}  // namespace verbatim::gateway
