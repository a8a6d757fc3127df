#include "policies/rows.h"

#include <iterator>

namespace verbatim::policies {

namespace {

bool LooksTyped(const std::string& text) {
  static constexpr std::string_view kWords[] = {"true", "false", "null", "~",
                                                "True", "False", "Null"};
  if (std::find(std::begin(kWords), std::end(kWords), text) != std::end(kWords)) return true;
  return text.size() < 40 && text.find_first_not_of("0123456789.+-eE") == std::string::npos &&
         text.find_first_of("0123456789") != std::string::npos;
}

class Applier {
 public:
  explicit Applier(const std::vector<Row>& rows) : rows_(rows) {}

  MaybeProblem Map(const Node& node, const std::string& path) const {
    if (node.kind != Node::Kind::kMap) {
      return Problem{node.line, path, Describe(node) + " is not allowed here", Children(path)};
    }
    for (const Node::Entry& entry : node.entries) {
      auto problem = Entry(entry, path.empty() ? entry.key : path + "." + entry.key, path);
      if (problem) return problem;
    }
    return std::nullopt;
  }

 private:
  MaybeProblem Entry(const Node::Entry& entry, const std::string& path,
                     const std::string& parent) const {
    const bool dotted = entry.key.find('.') != std::string::npos;
    for (const Row& row : rows_) {
      if (row.path == path && !dotted) {
        auto problem = row.read(entry.value);
        if (!problem) return std::nullopt;
        problem->key = problem->key.empty() ? path : path + "." + problem->key;
        if (problem->allowed.empty()) problem->allowed = row.allowed;
        return problem;
      }
    }
    if (!dotted && !Children(path).empty()) return Map(entry.value, path);
    return Problem{entry.line, path, "unknown key", Children(parent)};
  }

  // The keys that may stand in the section `path`.
  std::string Children(const std::string& path) const {
    std::vector<std::string_view> names;
    const std::string start = path.empty() ? "" : path + ".";
    for (const Row& row : rows_) {
      if (!row.path.starts_with(start)) continue;
      const std::string_view rest = std::string_view(row.path).substr(start.size());
      const std::string_view name = rest.substr(0, rest.find('.'));
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
    return Join(names);
  }

  const std::vector<Row>& rows_;
};

}  // namespace

Problem Wrong(const Node& node, std::string what, std::string key) {
  return Problem{node.line, std::move(key), std::move(what)};
}

std::string Describe(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return "nothing";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a map";
    case Node::Kind::kScalar:
      break;
  }
  // What stands before an @ may be a password, and errors go to logs and to the ledger.
  if (node.text.find('@') != std::string::npos) return "this value";
  return node.quoted ? json::Quote(node.text.substr(0, 80)) : node.text.substr(0, 80);
}

Problem NotAllowed(const Node& node, std::string key) {
  return Wrong(node, Describe(node) + " is not allowed here", std::move(key));
}

// A plain scalar as a JSON number, or nothing.
std::optional<json::Value> Number(const Node& node) {
  if (node.kind != Node::Kind::kScalar || node.quoted || node.text.size() > 64) return std::nullopt;
  auto v = json::Parse(node.text);
  if (!v || !v->is_number() || v->text_end() - v->text_begin() != node.text.size()) {
    return std::nullopt;
  }
  return std::move(*v);
}

// Text: quoted, or plain where it reads as nothing else.
MaybeProblem ReadText(const Node& node, std::string& out, const std::string& key) {
  if (node.kind != Node::Kind::kScalar) return NotAllowed(node, key);
  if (!node.quoted && LooksTyped(node.text)) {
    return Wrong(node, node.text + " is no text; write it in quotes if it is meant", key);
  }
  out = node.text;
  return std::nullopt;
}

std::string Join(std::span<const std::string_view> names) {
  std::string out;
  for (std::string_view name : names) {
    if (!out.empty()) out += ", ";
    out += name;
  }
  return out;
}

Row Flag(std::string path, bool& slot) {
  return {
      std::move(path), "true, false",
      [&slot](const Node& n) -> MaybeProblem {
        if (n.kind != Node::Kind::kScalar || n.quoted || (n.text != "true" && n.text != "false")) {
          return NotAllowed(n);
        }
        slot = n.text == "true";
        return std::nullopt;
      },
      [&slot] { return json::Value(slot); }};
}

Row Integer(std::string path, uint64_t& slot, uint64_t min, uint64_t max) {
  return {std::move(path), "an integer from " + std::to_string(min) + " to " + std::to_string(max),
          [&slot, min, max](const Node& n) -> MaybeProblem {
            const auto number = Number(n);
            if (!number || n.text.find_first_not_of("0123456789") != std::string::npos) {
              return NotAllowed(n);
            }
            const auto v = number->AsUint64();
            if (!v || *v < min || *v > max) return NotAllowed(n);
            slot = *v;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

Row Real(std::string path, double& slot, double min, double max) {
  return {std::move(path),
          "a number from " + json::FormatDouble(min) + " to " + json::FormatDouble(max),
          [&slot, min, max](const Node& n) -> MaybeProblem {
            const auto number = Number(n);
            const auto v = number ? number->AsDouble() : std::nullopt;
            if (!v || !(*v >= min && *v <= max)) return NotAllowed(n);
            slot = *v;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

Row Text(std::string path, std::string& slot, std::string allowed, Test ok) {
  return {std::move(path), std::move(allowed),
          [&slot, ok](const Node& n) -> MaybeProblem {
            std::string text;
            if (auto problem = ReadText(n, text)) return problem;
            if (!ok(text)) return NotAllowed(n);
            slot = std::move(text);
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

// One of several names, held as text.
Row Choice(std::string path, std::string& slot, std::vector<std::string_view> names) {
  std::string allowed = Join(names);
  return {std::move(path), std::move(allowed),
          [&slot, names](const Node& n) -> MaybeProblem {
            std::string text;
            if (auto problem = ReadText(n, text)) return problem;
            if (std::find(names.begin(), names.end(), text) == names.end()) return NotAllowed(n);
            slot = std::move(text);
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

Row TextList(std::string path, std::vector<std::string>& slot, std::string allowed, Test ok) {
  return {std::move(path), std::move(allowed),
          [&slot, ok](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kList) return NotAllowed(n);
            std::vector<std::string> list;
            for (const Node& item : n.items) {
              if (auto problem = ReadText(item, list.emplace_back())) return problem;
              if (!ok(list.back())) return NotAllowed(item);
            }
            std::sort(list.begin(), list.end());
            if (std::adjacent_find(list.begin(), list.end()) != list.end()) {
              return Wrong(n, "a name stands there twice");
            }
            slot = std::move(list);
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeArray();
            for (const std::string& item : slot) v.Append(item);
            return v;
          }};
}

Row TextMap(std::string path, std::vector<std::pair<std::string, std::string>>& slot,
            std::string allowed, Test key_ok) {
  return {std::move(path), std::move(allowed),
          [&slot, key_ok](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kMap) return NotAllowed(n);
            slot.clear();
            for (const Node::Entry& e : n.entries) {
              if (!key_ok(e.key)) return Problem{e.line, e.key, "is not allowed here"};
              slot.emplace_back(e.key, "");
              if (auto problem = ReadText(e.value, slot.back().second, e.key)) return problem;
            }
            std::sort(slot.begin(), slot.end());
            return std::nullopt;
          },
          [&slot] {
            json::Value v = json::Value::MakeObject();
            for (const auto& [key, value] : slot) v.Set(key, value);
            return v;
          }};
}

Row Secret(std::string path, std::string& slot) {
  return {std::move(path), "env:NAME, file:PATH",
          [&slot](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kScalar || !IsSecret(n.text)) {
              return Wrong(n,
                           "a secret does not stand in the configuration, only where it is found");
            }
            slot = n.text;
            return std::nullopt;
          },
          [&slot] { return json::Value(slot); }};
}

MaybeProblem ReadMap(const std::vector<Row>& rows, const Node& node) {
  return Applier(rows).Map(node, "");
}

bool IsUrl(const std::string& text) {
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
  } else {
    return false;
  }
  if (text.size() > 2000 ||
      !std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; }) ||
      text.find_first_of("?#@\\\"<>") != text.npos) {
    return false;
  }
  const std::string_view authority = rest.substr(0, rest.find('/'));
  std::string_view host = authority, port;
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.rfind(':');
  if (colon != authority.npos && (bracket == authority.npos || colon > bracket)) {
    host = authority.substr(0, colon);
    port = authority.substr(colon + 1);
    if (port.empty() || port.size() > 5 ||
        port.find_first_not_of("0123456789") != std::string_view::npos ||
        std::stoi(std::string(port)) > 65535 || std::stoi(std::string(port)) == 0) {
      return false;
    }
  }
  if (host.starts_with('[')) {
    return host.ends_with(']') && host.size() > 3 &&
           host.substr(1, host.size() - 2).find_first_not_of("0123456789abcdefABCDEF:.") ==
               std::string_view::npos;
  }
  return !host.empty() && host.size() <= 253 && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '.' || c == '_';
  });
}

bool Anything(const std::string& text) { return !text.empty() && text.size() <= 4096; }

bool IsSecret(const std::string& text) {
  return (text.starts_with("env:") && text.size() > 4) ||
         (text.starts_with("file:") && text.size() > 5);
}

}  // namespace verbatim::policies
