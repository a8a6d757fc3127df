#include "audit/report.h"

#include <map>
#include <string_view>

#include "base/bytes.h"
#include "base/clock.h"

namespace verbatim::audit {
namespace {

using store::Kind;

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Evidence bundle</title>
<style>
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#1a1a1a}
h1{font-size:1.6em}h2{font-size:1.2em;margin-top:2em}
table{border-collapse:collapse;width:100%}
td,th{border:1px solid #bbb;padding:.3em .5em;text-align:left;vertical-align:top}
th{background:#f0f0f0}code,pre{font:13px/1.4 ui-monospace,monospace;overflow-wrap:anywhere}
pre{background:#f7f7f7;border:1px solid #ddd;padding:.6em;white-space:pre-wrap}
</style></head><body>
)";

// What an entry of this kind says.
std::string_view Meaning(Kind kind) {
  switch (kind) {
    case Kind::kGenerated:
      return "a request was executed, and its answer recorded";
    case Kind::kHit:
      return "a recorded answer was given again";
    case Kind::kJoined:
      return "a request shared the execution of an equal one under way";
    case Kind::kHits:
      return "recorded answers given again, together, in one interval";
    case Kind::kReplayed:
      return "a recorded request was executed again on purpose";
    case Kind::kRefused:
      return "a request was refused before anything was executed";
    case Kind::kFailed:
      return "an execution did not complete";
    case Kind::kCancelled:
      return "the client went away before the answer was complete";
    case Kind::kInterrupted:
      return "the server stopped while a request was out; its fate is unknown";
    case Kind::kIntent:
      return "a request was about to leave for an upstream service";
    case Kind::kVerified:
      return "an answer was executed again and came out equal";
    case Kind::kDiverged:
      return "an answer was executed again and came out different";
    case Kind::kQuarantined:
      return "an answer that is not given again any more";
    case Kind::kErased:
      return "keys and salts of entries were destroyed";
    case Kind::kHeld:
      return "a legal hold began";
    case Kind::kReleased:
      return "a legal hold ended";
    case Kind::kViewed:
      return "somebody looked at a request or an answer";
    case Kind::kExported:
      return "a bundle like this one was written";
    case Kind::kKeyMade:
      return "a key was made";
    case Kind::kKeyRevoked:
      return "a key was revoked";
    case Kind::kConfiguration:
      return "what policy and software were in force from here on";
    case Kind::kServerStarted:
      return "the server started";
    case Kind::kServerStopped:
      return "the server stopped in good order";
    case Kind::kClockJumped:
      return "the machine's clock went backwards";
    default:
      return "see store/FORMAT.md of the program";
  }
}

// Text as HTML. What is no UTF-8, a control character, or changes the direction of writing (and so
// could make a line look like another) is shown as \xNN.
std::string Html(std::string_view text) {
  const bool utf8 = IsUtf8(text);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const auto byte = static_cast<uint8_t>(c);
    const std::string_view three = text.substr(i, 3);
    const bool turns =
        three.starts_with("\xE2\x80") && three.size() == 3 &&
        ((three[2] >= '\x8E' && three[2] <= '\x8F') || (three[2] >= '\xAA' && three[2] <= '\xAE'));
    const bool isolates = three.starts_with("\xE2\x81") && three.size() == 3 &&
                          three[2] >= '\xA6' && three[2] <= '\xA9';
    if (turns || isolates) {
      for (const char part : three) out += "\\x" + HexEncode(std::string_view(&part, 1));
      i += 2;
    } else if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F || (byte >= 0x80 && !utf8)) {
      out += "\\x" + HexEncode(std::string_view(&c, 1));
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

// The beginning of a text, not cut within a character.
std::string Excerpt(std::string_view text, uint64_t whole) {
  while (text.size() < whole && !text.empty() && !IsUtf8(text) && whole - text.size() > 0 &&
         (static_cast<uint8_t>(text.back()) & 0x80) != 0) {
    text.remove_suffix(1);
  }
  std::string out = Html(text);
  if (text.size() < whole) {
    out += "\n[" + std::to_string(whole) + " bytes in all; the whole is in the bundle's file]";
  }
  return out;
}

std::string Row(const std::string& name, const std::string& value, const std::string& meaning) {
  return "<tr><th>" + Html(name) + "</th><td><code>" + Html(value) + "</code></td><td>" +
         Html(meaning) + "</td></tr>\n";
}

std::string Figures(const ReportFacts& facts) {
  const BundleIndex& index = facts.index;
  std::string out = "<h2>Figures, and what each means</h2>\n<table>\n";
  out += Row("Log", index.origin, "The name of the log, which never changes.");
  out += Row("Log key", facts.vkey,
             "The public key that checks the log's signatures. Compare it with the one that the "
             "operator gave you by another way; a bundle cannot vouch for its own key.");
  out += Row("Tree size", std::to_string(index.size),
             "How many entries the log had when the checkpoint in this bundle was signed. Entries "
             "are numbered from 0.");
  out += Row("Root", facts.root,
             "One digest over all these entries. Whoever changes, removes or inserts one gets "
             "another root.");
  out += Row("Range", std::to_string(index.from) + " to " + std::to_string(index.to),
             "The entries that were asked for, both ends included.");
  const size_t stamps = index.timestamps.size();
  out +=
      Row("Timestamps", std::to_string(stamps),
          stamps > 0 ? "Tokens by which time-stamping authorities say when the log had reached a "
                       "size. Check them with the authority's own certificate."
                     : "No time-stamping authority says when these entries existed: times are "
                       "those of the server's clock.");
  std::string tenants = "all";
  if (index.tenants) {
    tenants.clear();
    for (const std::string& tenant : *index.tenants)
      tenants += (tenants.empty() ? "" : " ") + tenant;
  }
  out += Row("Tenants", tenants,
             "Whose entries were asked for, by pseudonym. Each tenant's entries are numbered "
             "without gaps, so that a missing one shows.");
  out += Row("Entries asked for", std::to_string(facts.selected),
             "Entries in the range, of these tenants.");
  out += Row("Entries in support", std::to_string(index.entries.size() - facts.selected),
             "Entries that those refer to, that say what was in force, or that show that no number "
             "is missing at either end.");
  out += Row("Payloads", index.payloads ? "included" : "withheld",
             "Whether requests and answers are in the bundle as files.");
  return out + "</table>\n";
}

std::string Kinds(const ReportFacts& facts) {
  std::map<std::string, std::pair<uint64_t, Kind>> counts;
  for (const ReportEntry& entry : facts.entries) {
    auto& [count, kind] = counts[store::KindName(entry.leaf.kind)];
    ++count;
    kind = entry.leaf.kind;
  }
  std::string out = "<h2>Kinds of entries listed below</h2>\n<table>\n";
  for (const auto& [name, counted] : counts) {
    out += Row(name, std::to_string(counted.first), std::string(Meaning(counted.second)));
  }
  return out + "</table>\n";
}

std::string Entries(const ReportFacts& facts) {
  std::string out =
      "<h2>Entries</h2>\n<p>Time is the server's own (UTC). No. is the tenant's own number of the "
      "entry. An outcome other than ok is the code of what went wrong. Record: whether the private "
      "part is in this bundle, withheld from its reader, or erased.</p>\n<table>\n"
      "<tr><th>Entry</th><th>Time</th><th>Kind</th><th>Outcome</th><th>Tenant</th><th>No.</th>"
      "<th>Record</th><th>Why here</th></tr>\n";
  for (const ReportEntry& entry : facts.entries) {
    const char* record = entry.record == RecordState::kIncluded   ? "included"
                         : entry.record == RecordState::kWithheld ? "withheld"
                                                                  : "erased";
    out += "<tr><td>" + std::to_string(entry.entry) + "</td><td>" + FormatTime(entry.leaf.time) +
           "</td><td>" + store::KindName(entry.leaf.kind) + "</td><td>" + Html(entry.leaf.outcome) +
           "</td><td><code>" + Html(entry.leaf.tenant.substr(0, 8)) + "</code></td><td>" +
           (entry.leaf.sequence ? std::to_string(entry.leaf.sequence) : "") + "</td><td>" + record +
           "</td><td>" + (entry.selected ? "asked for" : "in support") + "</td></tr>\n";
  }
  out += "</table>\n";
  if (facts.entries.size() < facts.index.entries.size()) {
    out += "<p>Listed are the first " + std::to_string(facts.entries.size()) + " of " +
           std::to_string(facts.index.entries.size()) + "; bundle.json names all.</p>\n";
  }
  return out;
}

std::string Payloads(const ReportFacts& facts) {
  std::string out;
  for (const ReportEntry& entry : facts.entries) {
    if (!entry.has_payload) continue;
    out += "<details><summary>Entry " + std::to_string(entry.entry) + ", " +
           store::KindName(entry.leaf.kind) + ", " + FormatTime(entry.leaf.time) + ", " +
           Html(entry.endpoint) + " " + Html(entry.model) +
           "</summary>\n<p>Request, as received:" + "</p><pre>" +
           Excerpt(entry.request, entry.request_bytes) +
           "</pre>\n<p>Answer, as recorded:</p><pre>" +
           Excerpt(entry.response, entry.response_bytes) + "</pre></details>\n";
  }
  if (out.empty()) return out;
  return "<h2>Requests and answers</h2>\n<p>At most the first " + std::to_string(kExcerpts) +
         " that have any, and " + std::to_string(kExcerptBytes) +
         " bytes of each; the files under entries/ hold the whole.</p>\n" + out;
}

}  // namespace

std::string MakeReadme() {
  return R"(This is an evidence bundle: a part of a log of requests to text-generation services and
of their answers, with what is needed to check it without trusting whoever kept the log.

report.html      what is in the bundle, for people; opens in any browser, needs no network
statement.txt    a certification to be completed and signed by a qualified person
log/             the log's public key, its signed checkpoint, older ones with proofs, and what
                 witnesses and time-stamping authorities say of them
entries/N/       entry number N:
  leaf.json        the public part, which the log's tree is made of
  leaf.tlog-proof  its place in the tree of the checkpoint (c2sp.org/tlog-proof)
  record.json      the private part, to which the leaf commits by a salted digest
  request          the request's body as received
  response         the answer's body as recorded
  trace.json       the tokens of the answer and digests of the numbers they were chosen by
  hits.jsonl       of a batch: each recorded answer that was given again
bundle.json      the list of all this, with salts and digests

To check it, with nothing but this file and the log's public key:
  verbatim verify BUNDLE --key VKEY
  python3 verify_bundle.py BUNDLE --key VKEY
The second is an independent program of one file that needs only Python.
Keep the zip file as it is: a copy that was unpacked and packed again is not accepted.
)";
}

std::string MakeReport(const ReportFacts& facts) {
  std::string out(kHead);
  out += "<h1>Evidence bundle of the log " + Html(facts.index.origin) + "</h1>\n";
  out +=
      "<p>This page is for reading. It proves nothing by itself: the files beside it do, and "
      "<code>verbatim verify</code> or <code>verify_bundle.py</code> checks them offline and says "
      "of each thing whether it holds, does not, or cannot be known.</p>\n";
  out += Figures(facts);
  out += Kinds(facts);
  out += Entries(facts);
  out += Payloads(facts);
  out +=
      "<h2>What this bundle cannot show</h2>\n<ul>\n"
      "<li>That the log's key is the operator's: compare it by another way.</li>\n"
      "<li>That others were shown the same log, unless witnesses cosigned the checkpoint.</li>\n"
      "<li>That the server's clock was right, unless an authority timestamped a checkpoint.</li>\n"
      "<li>That requests which never reached the server were not made elsewhere.</li>\n"
      "<li>That an upstream service really computed what it answered: its answers are recorded as "
      "they came. Answers of the embedded engine can be executed again from this bundle and the "
      "model file.</li>\n"
      "<li>What was redacted before recording, or erased since.</li>\n</ul>\n</body></html>\n";
  return out;
}

std::string MakeStatement(const ReportFacts& facts) {
  const BundleIndex& index = facts.index;
  std::string tenants = "all tenants";
  if (index.tenants) {
    tenants = "the tenants with the pseudonyms";
    for (const std::string& tenant : *index.tenants) tenants += " " + tenant;
  }
  return R"(CERTIFICATION OF RECORDS GENERATED BY AN ELECTRONIC PROCESS OR SYSTEM,
AND OF DATA COPIED FROM AN ELECTRONIC DEVICE, STORAGE MEDIUM, OR FILE
(in the style of Federal Rules of Evidence 902(13) and 902(14); a form to be completed and signed
by a qualified person, with the advice of counsel. Unsigned, it certifies nothing.)

I, ______________________________, state:

1. I am ______________________________ (position) at ______________________________, and I am
   familiar with the system described here by ______________________________.

2. The system. Requests to text-generation services pass through a gateway, which records each
   request and its answer, or why there was none, as an entry of an append-only log. The entries are
   the leaves of a Merkle tree after RFC 6962; the log signs the size and root of that tree. A
   changed, removed or inserted entry gives another root.

3. The records. The accompanying file, whose SHA-256 digest is
   ________________________________________________________________ (as printed when it was
   written and kept in the log's entry number ____________ of kind "exported"), holds the entries
)" + std::string("   ") +
         std::to_string(index.from) + " to " + std::to_string(index.to) + " of " + tenants +
         ",\n   " + std::to_string(facts.selected) + " in number, of the log\n     " +
         index.origin + "\n   with the public key\n     " + facts.vkey +
         "\n   as of its signed checkpoint of " + std::to_string(index.size) +
         " entries with the root\n     " + facts.root + R"(

4. 902(13): The entries were generated by that system in its regular operation, which produces an
   accurate result. What limits that statement: ______________________________________________

5. 902(14): The file was copied from the log's storage by the program's export command, and the
   copy was checked by digital identification: the digests and proofs in it were verified on
   ____________ (date) with ______________________________ (program and version), which reported
   that nothing in it is wrong. What could not be known, as that program reported, is attached.

I declare under penalty of perjury that the foregoing is true and correct (28 U.S.C. 1746).

Executed on ____________ at ______________________________.

Signature: ______________________________
)";
}

}  // namespace verbatim::audit
