// Chat templates against what Python's jinja2 renders with Hugging Face's settings, and what is
// promised beyond it: where each piece comes from, refusal by name, and bounds.

#include "engine/chat_template.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"

namespace verbatim::engine {
namespace {

namespace fs = std::filesystem;

// 2024-07-26 08:30:00 UTC, the clock of the vectors.
constexpr int64_t kClock = int64_t{1721982600} * 1000000;

fs::path Vectors() {
  const char* env = std::getenv("VERBATIM_VECTORS");
  const fs::path root = env != nullptr ? env : VERBATIM_SOURCE_DIR "/../shared/vectors";
  return root / "chat_templates";
}

std::string ReadFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

json::Value ReadJson(const fs::path& path) {
  auto value = json::Parse(ReadFile(path));
  EXPECT_TRUE(value.ok()) << path << ": " << value.error().message;
  return value.ok() ? std::move(value).value() : json::Value();
}

Result<std::string> Render(std::string_view source, const json::Value& variables) {
  auto t = ChatTemplate::Parse(source);
  if (!t) return t.error();
  auto segments = (*t)->Render(variables, kClock);
  if (!segments) return segments.error();
  return JoinSegments(*segments);
}

// Outcomes of a set of cases. "Different" must never happen; refusing is allowed but counted.
struct Tally {
  int same = 0, refused = 0, different = 0, same_error = 0, other_error = 0;
  void Text(const std::string& name, const Result<std::string>& got, const std::string& want) {
    if (!got) {
      ++refused;
      std::cout << name << ": refused: " << got.error().message << "\n";
    } else if (*got == want) {
      ++same;
    } else {
      ++different;
      ADD_FAILURE() << name << "\nwant " << json::Quote(want) << "\ngot  " << json::Quote(*got);
    }
  }
  // Python's message, "TypeError: ...", against ours.
  void Raised(const std::string& name, const Result<std::string>& got, const std::string& want) {
    if (got) {
      ++different;
      ADD_FAILURE() << name << "\nwant the error " << want << "\ngot  " << json::Quote(*got);
    } else if (want.substr(want.find(": ") + 2) == got.error().message) {
      ++same_error;
    } else {
      ++other_error;
      std::cout << name << ": " << got.error().message << " (Python: " << want << ")\n";
    }
  }
  void Print(const char* what) const {
    std::cout << what << ": " << same << " same, " << refused << " refused, " << different
              << " different; errors: " << same_error << " with the same message, " << other_error
              << " with another\n";
  }
};

class ChatTemplateVectors : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(Vectors())) GTEST_SKIP() << "no vectors at " << Vectors();
  }
};

TEST_F(ChatTemplateVectors, RendersTheJinjaCasesAsPythonDoes) {
  const json::Value file = ReadJson(Vectors() / "jinja-conformance.json");
  Tally tally;
  int cases = 0;
  for (const json::Value& c : file.Find("cases")->items()) {
    ++cases;
    const std::string& name = c.Find("name")->as_string();
    const std::string& python = c.Find("python_jinja2")->as_string();
    const auto got = Render(c.Find("template")->as_string(), *c.Find("vars"));
    if (python.starts_with("ERROR ")) {
      tally.Raised(name, got, python.substr(6));
    } else {
      tally.Text(name, got, python == "same" ? c.Find("expect")->as_string() : python);
    }
  }
  tally.Print("jinja-conformance");
  EXPECT_EQ(tally.different, 0);
  EXPECT_EQ(tally.refused, 0);
  EXPECT_GE(cases, 146);
}

TEST_F(ChatTemplateVectors, RendersTheTemplatesOfLlamaCpp) {
  const json::Value file = ReadJson(Vectors() / "llama-cpp-cases.json");
  Tally tally;
  for (const json::Value& c : file.Find("cases")->items()) {
    auto t = ChatTemplate::Parse(c.Find("template")->as_string());
    ASSERT_TRUE(t.ok()) << c.Find("name")->as_string() << ": " << t.error().message;
    ChatRequest request;
    request.messages = *c.Find("messages");
    request.bos_token = c.Find("bos_token")->as_string();
    request.eos_token = c.Find("eos_token")->as_string();
    request.clock_micros = kClock;
    auto segments = (*t)->RenderChat(request);
    Result<std::string> got = segments ? Result<std::string>(JoinSegments(*segments))
                                       : Result<std::string>(segments.error());
    tally.Text(c.Find("name")->as_string(), got, c.Find("expected")->as_string());
  }
  tally.Print("llama-cpp-cases");
  EXPECT_EQ(tally.different, 0);
  EXPECT_GE(tally.same, 11);
}

TEST_F(ChatTemplateVectors, RendersRealTemplatesAsPythonDoes) {
  const json::Value contexts = ReadJson(Vectors() / "contexts.json");
  const json::Value goldens = ReadJson(Vectors() / "goldens.json");
  Tally tally;
  for (const auto& [file, renderings] : goldens.Find("render")->members()) {
    const fs::path path = Vectors() / "templates" / file;
    if (!fs::exists(path)) continue;
    const std::string source = ReadFile(path);
    for (const auto& [context, want] : renderings.members()) {
      const auto got = Render(source, *contexts.Find(context));
      const std::string name = file + " " + context;
      if (const json::Value* text = want.Find("ok")) {
        tally.Text(name, got, text->as_string());
      } else {
        tally.Raised(name, got, want.Find("error")->as_string());
      }
    }
  }
  tally.Print("goldens");
  EXPECT_EQ(tally.different, 0);
  EXPECT_EQ(tally.refused, 0);
  EXPECT_GE(tally.same, 298);
  EXPECT_GE(tally.same_error + tally.other_error, 35);
}

}  // namespace
}  // namespace verbatim::engine
