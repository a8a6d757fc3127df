#include "gateway/redaction.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/crypto.h"
#include "gateway/redaction_patterns.h"
#include "gateway/redaction_places.h"
#include "gateway/wire/sse.h"

namespace verbatim::gateway {
namespace {

// What a body becomes that nobody can look into, and the rule's name for it.
constexpr std::string_view kUnreadable = "unreadable";
// What has more values than the decoder, and the reader of replies, take is not looked into either.
constexpr size_t kRequestValues = size_t{1} << 18;
constexpr size_t kReplyValues = size_t{1} << 22;
constexpr std::string_view kNothingKept = "\"[REDACTED]\"";

// Members that hold the text once more, in pieces that no pattern fits.
constexpr std::string_view kTokenMembers[] = {"logprobs", "prompt_logprobs", "prompt_token_ids",
                                              "token_ids", "top_logprobs"};
// Members that say which of several texts a delta belongs to.
constexpr std::string_view kIndexMembers[] = {"content_index", "index", "output_index",
                                              "summary_index"};

// A string of a document: where it stands there, and which text it is a part of.
struct Leaf {
  size_t document = 0;
  size_t begin = 0, end = 0;  // in the document, quotes included
  const std::string* text = nullptr;
};

struct Document {
  std::string text;  // JSON
  json::Value value;
  std::vector<TextRange> tokens;  // values of kTokenMembers, outermost ones
  std::map<size_t, std::pair<size_t, std::string>>
      edits;  // begin: end, JSON that stands there then
};

bool IsOneOf(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Place SplitPointer(const std::string& pointer) {
  Place segments;
  for (size_t i = 0; i < pointer.size(); ++i) {
    if (pointer[i] == '/') {
      segments.emplace_back();
    } else if (pointer[i] == '~') {
      segments.back() += pointer[++i] == '1' ? '/' : '~';
    } else {
      segments.back() += pointer[i];
    }
  }
  return segments;
}

struct Rule {
  std::string name;
  Place place;                         // "*" is any segment
  std::optional<TextPattern> pattern;  // nothing: the whole string
  std::string replace;

  std::vector<TextRange> Find(std::string_view text) const {
    if (pattern) return pattern->Find(text);
    if (text.empty()) return {};
    return {{0, text.size()}};
  }
};

// A text, in its parts and their order, with the rules that cover its place.
struct Text {
  std::vector<Leaf> parts;
  std::vector<const Rule*> rules;
};

// Texts by the SHA-256 over their place: names may be long and many strings may stand below them.
class Collector {
 public:
  // streamed: the documents are events of a stream.
  Collector(const std::vector<Rule>& rules, bool streamed) : rules_(rules), streamed_(streamed) {}
  void Add(size_t document, Document& of) {
    document_ = document;
    of_ = &of;
    if (streamed_) aliases_ = AliasesOf(of.value);
    Walk(of.value, Digest{}, false);
  }
  std::map<Digest, Text> texts;

 private:
  static Digest Below(const Digest& key, char kind, std::string_view name) {
    std::string bytes(AsBytes(key));
    bytes += kind;
    bytes += name;
    return Sha256(bytes);
  }

  void Walk(const json::Value& v, const Digest& key, bool in_tokens) {
    if (v.is_string()) {
      const auto [at, is_new] = texts.try_emplace(key);
      for (const Rule& rule : rules_) {
        std::vector<const Rule*>& own = at->second.rules;
        const bool known = !is_new && std::find(own.begin(), own.end(), &rule) != own.end();
        if (!known && Covers(rule.place, path_, aliases_)) own.push_back(&rule);
      }
      at->second.parts.push_back({document_, v.text_begin(), v.text_end(), &v.as_string()});
    } else if (v.is_array()) {
      for (size_t i = 0; i < v.items().size(); ++i) {
        Child(v.items()[i], key, std::to_string(i), in_tokens);
      }
    } else if (v.is_object()) {
      Digest own = key;
      for (const json::Member& member : v.members()) {
        if (member.second.is_number() && IsOneOf(kIndexMembers, member.first)) {
          own = Below(own, '#', member.first + "=" + json::Canonical(member.second));
        }
      }
      for (const json::Member& member : v.members()) {
        const bool tokens = (member.second.is_array() || member.second.is_object()) &&
                            IsOneOf(kTokenMembers, member.first);
        if (tokens && !in_tokens) {
          of_->tokens.push_back({member.second.text_begin(), member.second.text_end()});
        }
        Child(member.second, own, member.first, in_tokens || tokens);
      }
    }
  }
  void Child(const json::Value& v, const Digest& key, const std::string& segment, bool in_tokens) {
    if (!v.is_string() && !v.is_array() && !v.is_object()) return;
    path_.push_back(segment);
    Walk(v, Below(key, '/', segment), in_tokens);
    path_.pop_back();
  }

  const std::vector<Rule>& rules_;
  const bool streamed_;
  std::vector<Alias> aliases_;  // of the document
  size_t document_ = 0;
  Document* of_ = nullptr;
  Place path_;
};

struct Found {
  TextRange range;
  const Rule* rule = nullptr;
};

// What `rules` find in a text that came in parts: in the whole, and in each part by itself.
std::vector<Found> FindAll(const std::vector<const Rule*>& rules, const std::vector<Leaf>& parts) {
  std::string whole;
  for (const Leaf& part : parts) whole += *part.text;
  std::vector<Found> found;
  for (const Rule* rule : rules) {
    for (const TextRange& range : rule->Find(whole)) found.push_back({range, rule});
    if (parts.size() == 1) continue;
    size_t offset = 0;
    for (const Leaf& part : parts) {
      for (const TextRange& range : rule->Find(*part.text)) {
        found.push_back({{offset + range.begin, offset + range.end}, rule});
      }
      offset += part.text->size();
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.range.begin < b.range.begin; });
  return found;
}

// The whole text with what was found replaced; what overlaps is replaced once, as the first says.
std::string Replaced(const std::vector<Leaf>& parts, const std::vector<Found>& found) {
  std::string whole, out;
  for (const Leaf& part : parts) whole += *part.text;
  size_t kept = 0;
  for (const Found& f : found) {
    if (f.range.begin >= kept) {
      out.append(whole, kept, f.range.begin - kept);
      out += f.rule->replace;
    }
    kept = std::max(kept, f.range.end);
  }
  return out.append(whole, kept);
}

std::string Edited(const Document& document) {
  std::string out;
  size_t kept = 0;
  auto edits = document.edits;
  for (const TextRange& tokens : document.tokens) {
    edits.erase(edits.lower_bound(tokens.begin), edits.lower_bound(tokens.end));
    edits[tokens.begin] = {tokens.end, "null"};
  }
  for (const auto& [begin, edit] : edits) {
    out.append(document.text, kept, begin - kept);
    out += edit.second;
    kept = edit.first;
  }
  return out.append(document.text, kept);
}

// The lines of a piece that are not data: comments, ids, and what else a stream may carry.
std::string OtherLines(const std::string& bytes) {
  std::string out;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find_first_of("\r\n", begin), bytes.size());
    const std::string_view line = std::string_view(bytes).substr(begin, end - begin);
    const bool data = line == "data" || line.starts_with("data:");
    if (!data) out.append(line).push_back('\n');
    begin = end + 1;
  }
  return out;
}

bool IsPlainName(const std::string& text) {
  return text.size() <= 100 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || c == '.' || c == '_';
         });
}

}  // namespace

struct Redactor::Rules {
  std::vector<Rule> list;

  // Applies the rules to documents that are parts of one answer; adds the names of those that
  // match.
  void Apply(std::vector<Document>& documents, bool streamed,
             std::set<std::string>& matched) const {
    Collector collector(list, streamed);
    for (size_t i = 0; i < documents.size(); ++i) collector.Add(i, documents[i]);
    for (const auto& [key, of] : collector.texts) {
      const std::vector<Leaf>& parts = of.parts;
      if (of.rules.empty()) continue;
      const std::vector<Found> found = FindAll(of.rules, parts);
      if (found.empty()) continue;
      for (const Found& f : found) matched.insert(f.rule->name);
      std::string text = Replaced(parts, found);
      bool placed = false;
      for (const Leaf& part : parts) {
        const bool first = !placed && !part.text->empty();
        documents[part.document].edits[part.begin] = {part.end, first ? json::Quote(text) : "\"\""};
        placed |= first;
      }
    }
  }

  Redacted Body(std::string_view body, size_t max_values) const {
    Redacted out{std::string(body), {}};
    if (list.empty() || body.empty()) return out;
    std::vector<Document> documents(1);
    documents[0].text = out.bytes;
    auto value = json::Parse(out.bytes, {.max_values = max_values});
    if (!value) return {std::string(kNothingKept), {std::string(kUnreadable)}};
    documents[0].value = std::move(*value);
    std::set<std::string> matched;
    Apply(documents, false, matched);
    if (matched.empty()) return out;
    out.bytes = Edited(documents[0]);
    out.rules.assign(matched.begin(), matched.end());
    return out;
  }

  Redacted Stream(std::string_view stream) const {
    Redacted out{std::string(stream), {}};
    if (list.empty() || stream.empty()) return out;
    const std::vector<SsePiece> pieces = ParseEventStream(stream);
    std::set<std::string> matched;
    std::vector<Document> documents;
    constexpr size_t kNone = SIZE_MAX;
    std::vector<size_t> document_of(pieces.size(), kNone);
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (const Rule& rule : list) {
        if (!rule.place.empty() || rule.Find(OtherLines(pieces[i].bytes)).empty()) continue;
        matched.insert(rule.name);
      }
      if (!pieces[i].event) {
        // The rest of a stream that broke off inside an event.
        if (pieces[i].bytes.find("data") != std::string::npos) matched.emplace(kUnreadable);
        continue;
      }
      const std::string& data = pieces[i].event->data;
      if (data == "[DONE]" || data.empty()) continue;
      auto value = json::Parse(data);
      if (!value) {
        matched.emplace(kUnreadable);
        continue;
      }
      document_of[i] = documents.size();
      documents.push_back({data, std::move(*value), {}, {}});
    }
    Apply(documents, true, matched);
    if (matched.empty()) return out;
    out.bytes.clear();
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (!pieces[i].event) continue;
      const SseEvent& event = *pieces[i].event;
      if (event.type != "message" && IsPlainName(event.type)) {
        out.bytes += "event: " + event.type + "\n";
      }
      std::string data(kNothingKept);
      if (document_of[i] != kNone) data = Edited(documents[document_of[i]]);
      if (event.data == "[DONE]" || event.data.empty()) data = event.data;
      // JSON may stand on several lines of data.
      for (size_t at = 0; (at = data.find('\n', at)) != std::string::npos; at += 7) {
        data.insert(at + 1, "data: ");
      }
      out.bytes += "data: " + data + "\n\n";
    }
    out.rules.assign(matched.begin(), matched.end());
    return out;
  }
};

json::Value RedactionNote(const Redacted& request, const Redacted& response) {
  std::set<std::string> names(request.rules.begin(), request.rules.end());
  names.insert(response.rules.begin(), response.rules.end());
  json::Value rules = json::Value::MakeArray();
  for (const std::string& name : names) rules.Append(name);
  return json::Object{{"redacted", true}, {"redaction_rules", std::move(rules)}};
}

Redactor::Redactor() : rules_(std::make_shared<const Rules>()) {}

Result<Redactor> Redactor::Make(const std::vector<policies::RedactRule>& rules) {
  auto made = std::make_shared<Rules>();
  for (const policies::RedactRule& given : rules) {
    Rule rule;
    rule.name = !given.name.empty()      ? given.name
                : !given.pattern.empty() ? given.pattern
                                         : "rule " + std::to_string(made->list.size() + 1);
    rule.place = SplitPointer(given.pointer);
    if (!ToPlainPlace(rule.place)) {
      return Error{Code::kInvalid,
                   "the policy's redaction " + rule.name + ": the pointer " + given.pointer +
                       " names a place in the events of a stream only; name the one in the plain "
                       "answer, such as /content/*/text or /output/*/content, which covers both"};
    }
    rule.replace = given.replace;
    if (!given.pattern.empty()) rule.pattern = TextPattern::Named(given.pattern);
    if (!given.regex.empty()) {
      auto pattern = TextPattern::Regex(given.regex);
      if (!pattern) {
        return Error{Code::kInvalid,
                     "the policy's redaction " + rule.name + ": " + pattern.error().message};
      }
      rule.pattern = *std::move(pattern);
    }
    made->list.push_back(std::move(rule));
  }
  Redactor redactor;
  redactor.rules_ = std::move(made);
  return redactor;
}

bool Redactor::empty() const { return rules_->list.empty(); }

Redacted Redactor::Request(std::string_view body) const {
  return rules_->Body(body, kRequestValues);
}

Redacted Redactor::Response(std::string_view body, bool streamed) const {
  return streamed ? rules_->Stream(body) : rules_->Body(body, kReplyValues);
}

}  // namespace verbatim::gateway
