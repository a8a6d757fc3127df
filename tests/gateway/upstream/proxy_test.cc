// URLs, and which proxy an origin is reached through.
#include "gateway/upstream/proxy.h"

#include <gtest/gtest.h>

#include <map>

#include "gateway/upstream/url.h"

namespace verbatim::gateway {
namespace {

TEST(Url, IsReadStrictly) {
  const struct {
    const char* text;
    const char* origin;  // null: refused
    const char* path;
    const char* authority;
  } cases[] = {
      {"https://api.example.com", "https://api.example.com", "", "api.example.com"},
      {"HTTPS://API.Example.COM/v1", "https://api.example.com", "/v1", "api.example.com"},
      {"https://a.example:443/", "https://a.example", "/", "a.example"},
      {"https://a.example:80", "https://a.example:80", "", "a.example:80"},
      {"http://a_b.example:8080/x%20y/", "http://a_b.example:8080", "/x%20y/", "a_b.example:8080"},
      {"http://127.0.0.1:1", "http://127.0.0.1:1", "", "127.0.0.1:1"},
      {"https://[::1]:8443", "https://[::1]:8443", "", "[::1]:8443"},
      {"https://[2001:DB8::1]", "https://[2001:db8::1]", "", "[2001:db8::1]"},
      {"http://user:p%40ss@a.example", "http://a.example", "", "a.example"},
      {"", nullptr, "", ""},
      {"api.example.com", nullptr, "", ""},
      {"//api.example.com", nullptr, "", ""},
      {"ftp://a.example", nullptr, "", ""},
      {"https://", nullptr, "", ""},
      {"https:///v1", nullptr, "", ""},
      {"https://a.example?x=1", nullptr, "", ""},
      {"https://a.example#x", nullptr, "", ""},
      {"https://a.example:0", nullptr, "", ""},
      {"https://a.example:65536", nullptr, "", ""},
      {"https://a.example:x", nullptr, "", ""},
      {"https://a b.example", nullptr, "", ""},
      {"https://a.example/\r\nx: y", nullptr, "", ""},
      {"https://a%0d%0a.example", nullptr, "", ""},
      {"https://a%2fb.example", nullptr, "", ""},
      {"https://b\xc3\xbc.example", nullptr, "", ""},
      {" https://a.example", nullptr, "", ""},
      {"https://[::1", nullptr, "", ""},
  };
  for (const auto& c : cases) {
    auto url = ParseUrl(c.text);
    ASSERT_EQ(url.ok(), c.origin != nullptr) << c.text;
    if (!url.ok()) {
      EXPECT_EQ(url.error().code, Code::kInvalid);
      continue;
    }
    EXPECT_EQ(url->Origin(), c.origin) << c.text;
    EXPECT_EQ(url->path, c.path) << c.text;
    EXPECT_EQ(url->Authority(), c.authority) << c.text;
  }
  const auto url = ParseUrl("http://user:p%40ss@a.example");
  EXPECT_EQ(url->user, "user");
  EXPECT_EQ(url->password, "p@ss");
}

TEST(Proxy, NoProxyNamesOrigins) {
  const struct {
    const char* url;
    const char* list;
    bool named;
  } cases[] = {
      {"https://api.example.com", "", false},
      {"https://api.example.com", "*", true},
      {"https://api.example.com", "api.example.com", true},
      {"https://api.example.com", "API.Example.com", true},
      {"https://api.example.com", "example.com", true},
      {"https://api.example.com", ".example.com", true},
      {"https://api.example.com", "*.example.com", true},
      {"https://example.com", "example.com", true},
      {"https://example.com", ".example.com", false},
      {"https://notexample.com", "example.com", false},
      {"https://api.example.com", "ample.com", false},
      {"https://api.example.com", "other.com, .example.com", true},
      {"https://api.example.com", " , ,\tapi.example.com", true},
      {"https://api.example.com", "api.example.com:443", true},
      {"https://api.example.com", "api.example.com:8443", false},
      {"https://api.example.com", "api.example.com:x", false},
      {"https://api.example.com:8443", "example.com:8443", true},
      {"http://10.1.2.3", "10.1.2.3", true},
      {"http://10.1.2.3", "10.1.2.4", false},
      {"http://10.1.2.3", "10.0.0.0/8", true},
      {"http://10.1.2.3", "10.1.2.0/31", false},
      {"http://10.1.2.3", "10.1.2.2/31", true},
      {"http://10.1.2.3", "0.0.0.0/0", true},
      {"http://10.1.2.3", "10.0.0.0/33", false},
      {"http://10.1.2.3", "10.0.0.0/x", false},
      {"http://10.1.2.3:81", "10.1.2.3:80", false},
      {"http://10.1.2.3", ".3", false},
      {"http://[fd00::1]", "fd00::1", true},
      {"http://[fd00::1]", "[fd00::1]:80", true},
      {"http://[fd00::1]", "[fd00:0:0::1]", true},
      {"http://[fd00::1]", "fd00::/8", true},
      {"http://[fd00::1]", "10.0.0.0/8", false},
      {"https://api.example.com", "10.0.0.0/8,[,:,.,:1,*:1", false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(InNoProxy(*ParseUrl(c.url), c.list), c.named) << c.url << " in " << c.list;
  }
}

TEST(Proxy, ComesFromOptionOrEnvironment) {
  using Variables = std::map<std::string, std::string>;
  const struct {
    const char* url;
    const char* option;
    Variables environment;
    const char* want;  // "host:port", "" for none, null for an error
  } cases[] = {
      {"https://a.example", "", {}, ""},
      {"https://a.example", "none", {{"HTTPS_PROXY", "http://p:1"}}, ""},
      {"https://a.example", "http://p:1", {{"NO_PROXY", "*"}}, "p:1"},
      {"https://a.example", "", {{"HTTPS_PROXY", "http://p:1"}}, "p:1"},
      {"https://a.example", "", {{"HTTPS_PROXY", "p:3128"}}, "p:3128"},
      {"https://a.example", "", {{"HTTPS_PROXY", "http://p"}}, "p:80"},
      {"https://a.example",
       "",
       {{"https_proxy", "http://q:1"}, {"HTTPS_PROXY", "http://p:1"}},
       "q:1"},
      {"https://a.example", "", {{"HTTP_PROXY", "http://p:1"}}, ""},
      {"http://a.example", "", {{"HTTP_PROXY", "http://p:1/"}}, "p:1"},
      {"http://a.example", "", {{"HTTPS_PROXY", "http://p:1"}}, ""},
      {"https://a.example", "", {{"HTTPS_PROXY", "http://p:1"}, {"NO_PROXY", "a.example"}}, ""},
      {"https://a.example", "", {{"HTTPS_PROXY", "http://p:1"}, {"no_proxy", "b.example"}}, "p:1"},
      {"https://localhost", "", {{"HTTPS_PROXY", "http://p:1"}}, ""},
      {"https://127.0.0.2", "", {{"HTTPS_PROXY", "http://p:1"}}, ""},
      {"https://[::1]", "", {{"HTTPS_PROXY", "http://p:1"}}, ""},
      {"https://127.0.0.1", "http://p:1", {}, "p:1"},
      {"https://a.example", "https://p:1", {}, nullptr},
      {"https://a.example", "socks5://p:1", {}, nullptr},
      {"https://a.example", "http://p:1/path", {}, nullptr},
      {"https://a.example", "http://u%3Av:w@p:1", {}, nullptr},
      {"https://a.example", "", {{"HTTPS_PROXY", "http://u:secret@p:99999"}}, nullptr},
  };
  for (const auto& c : cases) {
    const Environment environment = [&](const char* name) {
      const auto found = c.environment.find(name);
      return found == c.environment.end() ? std::string() : found->second;
    };
    auto proxy = ChooseProxy(*ParseUrl(c.url), c.option, environment);
    ASSERT_EQ(proxy.ok(), c.want != nullptr) << c.url << " " << c.option;
    if (!proxy.ok()) {
      EXPECT_EQ(proxy.error().message.find("secret"), std::string::npos);
      continue;
    }
    const std::string got =
        *proxy ? (*proxy)->host + ":" + std::to_string((*proxy)->port) : std::string();
    EXPECT_EQ(got, c.want) << c.url << " " << c.option;
  }
}

TEST(Proxy, CredentialsBecomeBasicAuthorization) {
  const auto proxy = ChooseProxy(*ParseUrl("https://a.example"), "http://Aladdin:open%20sesame@p:1",
                                 ProcessEnvironment);
  ASSERT_TRUE(proxy.ok());
  EXPECT_EQ((*proxy)->authorization, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");  // RFC 7617 section 2
}

}  // namespace
}  // namespace verbatim::gateway
