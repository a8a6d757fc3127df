// Commands and reports as JSON, for the control socket and the command line.
#include "base/bytes.h"
#include "store/life.h"

namespace verbatim::store {
namespace {

using Verb = LifeCommand::Verb;

constexpr std::pair<Verb, const char*> kVerbs[] = {{Verb::kHold, "hold"},
                                                   {Verb::kRelease, "release"},
                                                   {Verb::kShred, "shred"},
                                                   {Verb::kPrune, "prune"},
                                                   {Verb::kBackup, "backup"}};
constexpr size_t kMaxTextBytes = 1000;

Error Invalid(const std::string& what) { return {Code::kInvalid, what}; }

Status Check(const LifeCommand& command) {
  const bool subject = !command.subject.empty();
  if (subject != !command.tenant.empty()) return Invalid("--subject and --tenant go together");
  if (command.verb == Verb::kHold || command.verb == Verb::kRelease ||
      command.verb == Verb::kShred) {
    if (command.entries.has_value() == subject) {
      return Invalid("name what it is about: --entry, --range, or --subject with --tenant");
    }
    if (command.entries && (command.entries->first > command.entries->second ||
                            command.entries->second >= kMaxRangeNumber)) {
      return Invalid("--range A:B needs A below B");
    }
  }
  if (command.verb == Verb::kPrune &&
      command.before.has_value() == command.before_time.has_value()) {
    return Invalid("name up to where: --before N, or a time such as 2026-01-31T00:00:00Z");
  }
  if (command.verb == Verb::kBackup && (command.backup.empty() || command.backup[0] != '/')) {
    return Invalid("name the backup's folder with --out");
  }
  for (const auto& [name, text] :
       {std::pair("--reason", &command.reason), std::pair("--authority", &command.authority)}) {
    if (text->empty()) return Invalid(std::string(name) + " is missing: it goes into the log");
  }
  for (const std::string* text : {&command.reason, &command.authority, &command.tenant,
                                  &command.subject, &command.by, &command.backup}) {
    if (text->size() > kMaxTextBytes) return Invalid("a text is over 1,000 bytes");
    if (!IsUtf8(*text) || text->find('\n') != std::string::npos) {
      return Invalid("a text has a line break, or is not UTF-8");
    }
  }
  return {};
}

}  // namespace

json::Value ToJson(const LifeCommand& command) {
  json::Value object = json::Value::MakeObject();
  for (const auto& [verb, name] : kVerbs) {
    if (verb == command.verb) object.Set("verb", name);
  }
  if (command.entries) {
    object.Set("first", command.entries->first);
    object.Set("last", command.entries->second);
  }
  if (command.before) object.Set("before", *command.before);
  if (command.before_time) object.Set("before_time", *command.before_time);
  if (command.partial) object.Set("partial", true);
  if (!command.by.empty()) object.Set("by", command.by);
  for (const auto& [name, text] :
       {std::pair("tenant", &command.tenant), std::pair("subject", &command.subject),
        std::pair("reason", &command.reason), std::pair("authority", &command.authority),
        std::pair("backup", &command.backup)}) {
    if (!text->empty()) object.Set(name, *text);
  }
  return object;
}

Result<LifeCommand> LifeCommandFromJson(const json::Value& value) {
  const Error malformed = Invalid("the command is malformed");
  if (!value.is_object()) return malformed;
  LifeCommand command;
  bool known = false;
  const json::Value* verb = value.Find("verb");
  for (const auto& [each, name] : kVerbs) {
    if (!verb || !verb->is_string() || verb->as_string() != name) continue;
    command.verb = each;
    known = true;
  }
  if (!known) return malformed;
  const json::Value *first = value.Find("first"), *last = value.Find("last");
  if (first && last && first->AsUint64() && last->AsUint64()) {
    command.entries = {*first->AsUint64(), *last->AsUint64()};
  } else if (first || last) {
    return malformed;
  }
  if (const json::Value* before = value.Find("before")) command.before = before->AsUint64();
  if (const json::Value* time = value.Find("before_time")) command.before_time = time->AsInt64();
  if (const json::Value* partial = value.Find("partial")) {
    command.partial = partial->is_bool() && partial->as_bool();
  }
  for (const auto& [name, text] :
       {std::pair("tenant", &command.tenant), std::pair("subject", &command.subject),
        std::pair("reason", &command.reason), std::pair("authority", &command.authority),
        std::pair("backup", &command.backup), std::pair("by", &command.by)}) {
    const json::Value* member = value.Find(name);
    if (member && !member->is_string()) return malformed;
    if (member) *text = member->as_string();
  }
  if (Status checked = Check(command); !checked.ok()) return checked.error();
  return command;
}

json::Value ToJson(const LifeReport& report) {
  json::Value object = json::Value::MakeObject();
  object.Set("outcome", report.outcome);
  object.Set("entry", report.entry ? json::Value(*report.entry) : json::Value());
  object.Set("entries", report.entries);
  object.Set("hits_slots", report.hits_slots);
  object.Set("held", report.held);
  object.Set("retained", report.retained);
  if (report.before > 0) object.Set("before", report.before);
  json::Value backups = json::Value::MakeArray();
  for (const std::string& path : report.backups_not_reached) backups.Append(path);
  object.Set("backups_not_reached", std::move(backups));
  return object;
}

Result<LifeReport> LifeReportFromJson(const json::Value& value) {
  LifeReport report;
  const auto number = [&](const char* name) {
    const json::Value* member = value.Find(name);
    return member ? member->AsUint64() : std::nullopt;
  };
  const json::Value *outcome = value.Find("outcome"), *backups = value.Find("backups_not_reached");
  if (!outcome || !outcome->is_string() || !backups || !backups->is_array()) {
    return Invalid("the server's report is malformed; it is of another version: update both");
  }
  report.outcome = outcome->as_string();
  report.entry = number("entry");
  report.entries = number("entries").value_or(0);
  report.hits_slots = number("hits_slots").value_or(0);
  report.held = number("held").value_or(0);
  report.retained = number("retained").value_or(0);
  report.before = number("before").value_or(0);
  for (const json::Value& path : backups->items()) {
    if (path.is_string()) report.backups_not_reached.push_back(path.as_string());
  }
  return report;
}

Result<LifeReport> LifeReportFromAnswer(std::string_view answer) {
  Result<json::Value> value = json::Parse(answer);
  if (!value.ok()) return value.error();
  if (const json::Value* report = value->Find("report")) return LifeReportFromJson(*report);
  const json::Value* error = value->Find("error");
  const json::Value* name = error ? error->Find("code") : nullptr;
  const json::Value* message = error ? error->Find("message") : nullptr;
  if (!name || !name->is_string() || !message || !message->is_string()) {
    return Invalid("the server's answer is malformed; it is of another version: update both");
  }
  for (const Code code : {Code::kInvalid, Code::kNotFound, Code::kFailedPrecondition,
                          Code::kUnavailable, Code::kCorrupt, Code::kUnsupported}) {
    if (name->as_string() == CodeName(code)) return Error{code, message->as_string()};
  }
  return Error{Code::kIo, message->as_string()};
}

}  // namespace verbatim::store
