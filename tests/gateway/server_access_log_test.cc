// Every request that a server answered, or that broke off, is one line of its access log.
#include <fstream>
#include <map>

#include "base/crypto.h"
#include "base/json.h"
#include "gateway/access_log.h"
#include "tests/gateway/server_fixture.h"

namespace verbatim::gateway {
namespace {

class ServerAccessLogTest : public ServerTest {
 protected:
  void SetUp() override {
    char name[] = "/tmp/verbatim-access-log-XXXXXX";
    const int fd = ::mkstemp(name);
    ASSERT_GE(fd, 0);
    ::close(fd);
    file_ = name;
    log_ = AccessLog::Open(file_).value();
    options_.access_log = log_.get();
  }
  void TearDown() override {
    server_.reset();
    log_.reset();
    ::unlink(file_.c_str());
  }

  // The lines, once there are so many.
  std::vector<json::Value> Lines(size_t count) {
    std::vector<json::Value> lines;
    Within(milliseconds(5000), [&] {
      lines.clear();
      std::ifstream in(file_);
      for (std::string line; std::getline(in, line);) {
        Result<json::Value> value = json::Parse(line);
        if (value.ok()) lines.push_back(*std::move(value));
      }
      return lines.size() >= count;
    });
    EXPECT_EQ(lines.size(), count);
    lines.resize(count, json::Value::MakeObject());
    return lines;
  }

  std::string file_;
  std::unique_ptr<AccessLog> log_;
};

std::string Text(const json::Value& line, const char* key) {
  const json::Value* value = line.Find(key);
  return value && value->is_string() ? value->as_string() : "";
}

uint64_t Number(const json::Value& line, const char* key) {
  const json::Value* value = line.Find(key);
  return value ? value->AsUint64().value_or(0) : 0;
}

TEST_F(ServerAccessLogTest, EachAnswerIsALine) {
  Start();
  const std::string trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  RawClient client(server_->port());
  client.Send(Post("/echo?secret=hunter2", "{\"a\":1}", "traceparent: " + trace + "\r\n"));
  const std::string answer = client.ReadResponse();
  client.Send(Post("/stream", "{}"));  // on the same connection
  client.ReadResponse();
  client.Send("HEAD /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  client.ReadUntil("\r\n\r\n", milliseconds(2000));

  const auto lines = Lines(3);
  EXPECT_EQ(Text(lines[0], "method"), "POST");
  EXPECT_EQ(Text(lines[0], "path"), "/echo");
  EXPECT_EQ(Number(lines[0], "status"), 200u);
  EXPECT_EQ(Text(lines[0], "tenant"), "default");
  EXPECT_EQ(Text(lines[0], "trace_id"), "0af7651916cd43dd8448eb211c80319c");
  EXPECT_EQ(Number(lines[0], "bytes_in"), 7u);
  EXPECT_EQ(Number(lines[0], "bytes_out"), answer.size() - answer.find("\r\n\r\n") - 4);
  EXPECT_NE(answer.find(Text(lines[0], "request_id")), std::string::npos);
  EXPECT_TRUE(lines[0].Find("duration_ms") && lines[0].Find("first_byte_ms"));
  EXPECT_EQ(json::Serialize(lines[0]).find("hunter2"), std::string::npos);
  EXPECT_EQ(Text(lines[1], "path"), "/stream");
  EXPECT_EQ(Number(lines[1], "bytes_out"), 19u);  // of the events, without framing
  EXPECT_EQ(Text(lines[1], "trace_id"), "");
  EXPECT_EQ(Text(lines[2], "method"), "HEAD");
  EXPECT_EQ(Number(lines[2], "bytes_out"), 0u);
}

TEST_F(ServerAccessLogTest, SoIsEachRefusal) {
  ApiKey key;
  key.secret_digest = Sha256("the-secret-key");
  key.principal = {"acme", "alice", "key-1", static_cast<uint8_t>(Role::kClient), {}, {}};
  Start({}, Authenticator({key}));
  Ask(Get("/nowhere%0d%0a%7b%22status%22:200%7d"));
  Ask(Get("/nowhere/%22quoted%22"));
  Ask(Post("/echo", "{}"));
  Ask(Post("/echo", "{}", "Authorization: Bearer the-secret-key\r\n"));
  Ask("GET / HTTP/1.1\nbad\n\n");

  std::map<std::string, std::vector<uint64_t>> statuses;
  for (const json::Value& line : Lines(5)) {
    statuses[Text(line, "path")].push_back(Number(line, "status"));
    EXPECT_FALSE(Text(line, "request_id").empty());
    EXPECT_EQ(json::Serialize(line).find("the-secret-key"), std::string::npos);
    EXPECT_EQ(Text(line, "key_id"), Number(line, "status") == 200 ? "key-1" : "");
  }
  EXPECT_EQ(statuses["/echo"], (std::vector<uint64_t>{401, 200}));
  EXPECT_EQ(statuses["/nowhere/\"quoted\""], (std::vector<uint64_t>{404}));
  EXPECT_EQ(statuses[""].size(), 2u);  // what could not be parsed has no path
}

TEST_F(ServerAccessLogTest, AClientThatHangsUpIs499) {
  Start();
  {
    RawClient client(server_->port());
    client.Send(Post("/wait", "{}"));
    Within(milliseconds(2000), [&] { return observed_.waiting > 0; });
    client.Reset();
  }
  const auto lines = Lines(1);
  EXPECT_EQ(Text(lines[0], "path"), "/wait");
  EXPECT_EQ(Number(lines[0], "bytes_out"), 0u);
  EXPECT_EQ(Number(lines[0], "status"), 499u);
  EXPECT_EQ(lines[0].Find("first_byte_ms"), nullptr);
}

}  // namespace
}  // namespace verbatim::gateway
