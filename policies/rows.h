// What rows are made of: builders by type, and readers for values of a shape of their own. For the
// schema_*.cc files only; schema.h says what a Row is. A slot outlives its row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/schema.h"

namespace verbatim::policies {

using MaybeProblem = std::optional<Problem>;
using Test = bool (*)(const std::string&);

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxMillis = 86'400'000;

Problem Wrong(const Node& node, std::string what, std::string key = {});
// "12 is not allowed here": never for what may be a secret.
Problem NotAllowed(const Node& node, std::string key = {});
std::string Describe(const Node& node);
std::string Join(std::span<const std::string_view> names);  // "a, b"

// A plain scalar as a JSON number, or nothing.
std::optional<json::Value> Number(const Node& node);
// Text: quoted, or plain where it reads as nothing else.
MaybeProblem ReadText(const Node& node, std::string& out, const std::string& key = {});
// A map whose keys `rows` describe. The problem's key is the path in that map.
MaybeProblem ReadMap(const std::vector<Row>& rows, const Node& node);

bool Anything(const std::string& text);  // 1 to 4,096 bytes
bool IsSecret(const std::string& text);  // "env:NAME" or "file:PATH"
// http or https, a host, perhaps a port and a path; nothing that could hold a secret.
bool IsUrl(const std::string& text);

Row Flag(std::string path, bool& slot);
Row Integer(std::string path, uint64_t& slot, uint64_t min, uint64_t max);
Row Real(std::string path, double& slot, double min, double max);
Row Text(std::string path, std::string& slot, std::string allowed, Test ok);
// A reference to a secret. What stands there instead is not repeated in the error.
Row Secret(std::string path, std::string& slot);
// One of several names, held as text.
Row Choice(std::string path, std::string& slot, std::vector<std::string_view> names);
// Sorted, without duplicates.
Row TextList(std::string path, std::vector<std::string>& slot, std::string allowed, Test ok);
Row TextMap(std::string path, std::vector<std::pair<std::string, std::string>>& slot,
            std::string allowed, Test key_ok);

// One of several names, held as an enumerator: the index in `names`.
template <typename Enum>
Row Choice(std::string path, Enum& slot, std::vector<std::string_view> names) {
  std::string allowed = Join(names);
  return {std::move(path), std::move(allowed),
          [&slot, names](const Node& n) -> MaybeProblem {
            std::string text;
            if (auto problem = ReadText(n, text)) return problem;
            const auto it = std::find(names.begin(), names.end(), text);
            if (it == names.end()) return NotAllowed(n);
            slot = static_cast<Enum>(it - names.begin());
            return std::nullopt;
          },
          [&slot, names] { return json::Value(names[static_cast<size_t>(slot)]); }};
}

// A list of maps, each with the rows that `rows` binds; `check` says what is wrong with a whole
// one.
template <typename T>
Row ListOf(std::string path, std::string allowed, std::vector<T>& slot,
           std::vector<Row> (*rows)(T&), std::string (*check)(const T&)) {
  return {std::move(path), std::move(allowed),
          [&slot, rows, check](const Node& n) -> MaybeProblem {
            if (n.kind != Node::Kind::kList) return NotAllowed(n);
            slot.clear();
            for (const Node& item : n.items) {
              if (item.kind != Node::Kind::kMap) {
                return Wrong(item, "an item that is no map is not allowed here");
              }
              T& value = slot.emplace_back();
              if (auto problem = ReadMap(rows(value), item)) return problem;
              if (std::string what = check(value); !what.empty()) return Wrong(item, what);
            }
            return std::nullopt;
          },
          [&slot, rows] {
            json::Value list = json::Value::MakeArray();
            for (T& value : slot) list.Append(WriteRows(rows(value)));
            return list;
          }};
}

}  // namespace verbatim::policies
