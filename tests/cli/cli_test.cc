// The command line from outside: what people and scripts type, what they get, and the exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"

namespace verbatim::cli {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "verbatim-cli-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string File(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }

  // Runs `verbatim ARGS` as a shell would.
  Outcome Run(const std::string& args) const {
    const std::string err_file = (folder_ / "stderr").string();
    const std::string command = std::string(VERBATIM_BINARY) + " " + args + " 2>" + err_file;
    Outcome outcome;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return outcome;
    std::array<char, 4096> buffer;
    for (size_t n; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
      outcome.out.append(buffer.data(), n);
    }
    const int status = pclose(pipe);
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    std::ifstream err(err_file);
    outcome.err.assign(std::istreambuf_iterator<char>(err), {});
    return outcome;
  }

  static std::string Model() {
    if (const char* given = std::getenv("VERBATIM_MODEL")) return given;
    const char* home = std::getenv("HOME");
    const std::string file = std::string(home != nullptr ? home : "") +
                             "/.cache/verbatim/SmolLM2-135M-Instruct.Q4_1.gguf";
    return fs::exists(file) ? file : "";
  }

  fs::path folder_;
};

size_t Lines(const std::string& text) {
  size_t n = 0;
  for (char c : text) n += c == '\n';
  return n;
}

TEST_F(Cli, ErrorsAreOneLineAndExitWithTwo) {
  const std::string no_such = (folder_ / "none").string();
  const std::vector<std::string> cases = {
      "",
      "no-such-command",
      "generate --prompt x",
      "generate --model " + no_such + " --prompt x",
      "generate --model " + File("bad.gguf", "not a model") + " --prompt x",
      "canonical " + no_such,
      "fsck --data " + no_such,
      "serve --device cuda:0",
      "serve --model broken",
      "serve --data " + folder_.string() + " --listen 0.0.0.0:0",
      "models inspect " + no_such,
      "policy check " + no_such,
  };
  for (const std::string& args : cases) {
    const Outcome got = Run(args);
    EXPECT_EQ(got.exit_code, 2) << "verbatim " << args << "\n" << got.out << got.err;
    EXPECT_EQ(Lines(got.err), 1u) << "verbatim " << args << "\n" << got.err;
    EXPECT_NE(got.err.find("verbatim"), std::string::npos) << got.err;
    EXPECT_EQ(got.out, "") << "verbatim " << args;
  }
}

TEST_F(Cli, EveryCommandHasHelp) {
  for (const char* command : {"serve", "generate", "canonical", "fingerprint", "models", "fsck",
                              "policy", "models tokenize", "models render", "policy check"}) {
    const Outcome got = Run(std::string(command) + " --help");
    EXPECT_EQ(got.exit_code, 0) << command;
    EXPECT_NE(got.out.find("Usage"), std::string::npos) << command << "\n" << got.out;
  }
}

TEST_F(Cli, CanonicalPrintsTheBytesOnly) {
  const Outcome got = Run("canonical " + File("a.json", "{ \"b\": 1.0, \"a\": [1e0, 0.10] }\n"));
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, "{\"a\":[1,0.1],\"b\":1}");
  EXPECT_EQ(Run("canonical " + File("twice.json", "{\"a\":1,\"a\":1}")).exit_code, 2);
}

TEST_F(Cli, FingerprintSaysWhyTwoRequestsDiffer) {
  const std::string a =
      File("a.json", R"({"model":"m","messages":[{"role":"user","content":"x"}],"seed":1})");
  const std::string b =
      File("b.json", R"({"model":"m","messages":[{"role":"user","content":"y"}],"seed":1.0})");
  const Outcome got = Run("fingerprint " + a + " --explain " + b);
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_NE(got.out.find("/messages/0/content"), std::string::npos) << got.out;
  EXPECT_EQ(got.out.find("/seed"), std::string::npos) << got.out;
}

TEST_F(Cli, PolicyErrorsNameFileLineAndWhatIsAllowed) {
  const std::string file = File("p.yaml", "mode: record\nverify:\n  rate: 2\n");
  const Outcome got = Run("policy check " + file);
  EXPECT_EQ(got.exit_code, 1) << got.out << got.err;
  EXPECT_NE(got.err.find("p.yaml:3"), std::string::npos) << got.err;
  EXPECT_NE(got.err.find("0 to 1"), std::string::npos) << got.err;
}

// The same run through the program: tokens and digests of the golden vectors, whatever the threads.
TEST_F(Cli, GenerateReproducesGoldenDigests) {
  const std::string model = Model();
  if (model.empty()) GTEST_SKIP() << "the default model is absent; tools/fetch-model fetches it";
  std::ifstream file(VERBATIM_SOURCE_DIR "/tests/golden/e2e_WBA16.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto golden = json::Parse(text);
  ASSERT_TRUE(golden.ok());
  const json::Value& first = golden->Find("prompts")->items().at(0);
  json::Value prompt = json::Value::MakeObject();
  prompt.Set("tokens", *first.Find("ids"));
  const std::string ids = File("ids.json", json::Serialize(prompt));
  std::vector<std::string> want;
  for (const json::Value& step : first.Find("greedy")->Find("digests")->items()) {
    want.push_back(step.as_string());
  }
  ASSERT_EQ(want.size(), 32u);
  for (const char* threads : {"1", "2"}) {
    const Outcome got =
        Run("generate --model " + model + " --prompt-ids " + ids +
            " --max-tokens 32 --temperature 0 --ignore-eos --digests --json --threads " + threads);
    ASSERT_EQ(got.exit_code, 0) << got.err;
    auto answer = json::Parse(got.out);
    ASSERT_TRUE(answer.ok()) << got.out;
    std::vector<std::string> digests;
    for (const json::Value& d : answer->Find("digests")->items()) digests.push_back(d.as_string());
    EXPECT_EQ(digests, want) << threads << " threads";
    EXPECT_EQ(answer->Find("numerics")->as_string(), "1");
  }
}

TEST_F(Cli, KeysAreMadeListedAndRevoked) {
  const std::string data = " --data " + (folder_ / "data").string();
  const Outcome made = Run("keys new-api" + data +
                           " --tenant acme --subject ci --roles client,auditor --group a --group b"
                           " --model 'gpt-*' --requests-per-minute 5 --expires 2999-01-31 --json");
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const auto key = json::Parse(made.out);
  ASSERT_TRUE(key.ok()) << made.out;
  const std::string secret = key->Find("secret")->as_string(), id = key->Find("id")->as_string();
  EXPECT_EQ(secret.size(), 47u);
  EXPECT_EQ(json::Serialize(*key->Find("groups")), R"(["a","b"])");
  EXPECT_EQ(made.err.find(secret), std::string::npos);

  const Outcome plain = Run("keys new-api" + data + " --tenant acme --subject other");
  EXPECT_TRUE(plain.out.starts_with("vbk_")) << "the key alone, for scripts";
  EXPECT_EQ(plain.out.size(), 48u);

  EXPECT_EQ(Run("keys revoke" + data + " " + id).exit_code, 0);
  EXPECT_EQ(Run("keys revoke" + data + " " + id).exit_code, 0) << "once more is no fault";
  const Outcome list = Run("keys list --json" + data);
  EXPECT_EQ(list.out.find(secret), std::string::npos);
  EXPECT_EQ(list.out.find("sha256"), std::string::npos);
  const auto keys = json::Parse(list.out);
  ASSERT_TRUE(keys.ok()) << list.out;
  ASSERT_EQ(keys->Find("keys")->items().size(), 2u);
  EXPECT_EQ(keys->Find("keys")->items()[0].Find("state")->as_string(), "revoked");
  EXPECT_EQ(keys->Find("keys")->items()[1].Find("state")->as_string(), "active");

  const char* const wrong[] = {
      "keys revoke key_0000",
      "keys new-api --tenant acme",
      "keys new-api --tenant '*' --subject s",
      "keys new-api --tenant acme --subject s --roles admin",
      "keys new-api --tenant acme --subject s --expires soon",
      "keys new-api --tenant acme --subject s --expires 2020-01-01",
      "keys new-api --tenant acme --subject s --concurrent -1",
  };
  for (const char* args : wrong) {
    const Outcome got = Run(args + data);
    EXPECT_EQ(got.exit_code, 2) << args;
    EXPECT_EQ(got.out, "") << args;
    EXPECT_NE(got.err, "") << args;
  }
}

}  // namespace
}  // namespace verbatim::cli
