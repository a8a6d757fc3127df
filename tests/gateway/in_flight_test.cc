// What readers of a run get, and what is held of its reply meanwhile. No I/O and no threads: the
// test is the run, and reads for everyone.
#include "gateway/in_flight.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <string>
#include <vector>

#include "gateway/recorder.h"

namespace verbatim::gateway {
namespace {

class Prepared : public PreparedRequest {
 public:
  bool external() const override { return true; }
  const json::Value& identity() const override { return none_; }
  std::string system_fingerprint() const override { return ""; }
  uint32_t choices() const override { return 1; }
  uint32_t prompt_tokens() const override { return 0; }
  json::Value parameters() const override { return none_; }
  json::Value description() const override { return none_; }
  std::string model_digest() const override { return ""; }
  std::string numerics() const override { return ""; }
  Answered<std::unique_ptr<Run>> Start(const RunOptions&, RunObserver) const override {
    return HttpError{};
  }

 private:
  json::Value none_;
};

struct Asked {
  int resumed = 0, cancelled = 0;
};

class CountingRun : public Run {
 public:
  explicit CountingRun(Asked& asked) : asked_(asked) {}
  void Resume() override { ++asked_.resumed; }
  void Cancel() override { ++asked_.cancelled; }

 private:
  Asked& asked_;
};

std::shared_ptr<Flight> NewFlight() {
  auto call = std::make_shared<Call>();
  call->prepared = std::make_shared<Prepared>();
  return std::make_shared<Flight>(call);
}

// A run of an upstream's, and those who read it.
class Running {
 public:
  Running(InFlight& all, std::string key, bool streamed = true) : all_(all), key_(std::move(key)) {
    Join();
    observer_ = Flight::Observe(readers.front()->flight());
    readers.front()->flight()->Attach(std::make_shared<CountingRun>(asked));
    observer_.on_reply({.content_type = "text/event-stream", .headers = {}, .streamed = streamed});
  }
  InFlight::Seat& Join() {
    auto seat = all_.JoinOrLead(key_, all_.Epoch(), NewFlight);
    readers.push_back(std::make_unique<InFlight::Seat>(*std::move(seat)));
    return *readers.back();
  }
  void Give(size_t bytes, bool completes = false) {
    std::vector<ReplyPiece> pieces(1);
    pieces[0] = {std::string(bytes, 'x'), completes};
    observer_.on_body(std::move(pieces));
  }
  bool WantsMore(size_t held = 0) { return observer_.wants_more(held); }
  void End(RunEnd::Outcome outcome) {
    RunEnd end;
    end.outcome = outcome;
    observer_.on_end(std::move(end));
  }

  Asked asked;
  std::vector<std::unique_ptr<InFlight::Seat>> readers;

 private:
  InFlight& all_;
  std::string key_;
  RunObserver observer_;
};

// All that there is, which may lie in several places.
size_t ReadAll(InFlight::Seat& reader) {
  size_t bytes = 0;
  for (size_t n = 1; n > 0; bytes += n) n = reader.Read(true).bytes.size();
  return bytes;
}

TEST(ReplyBody, GivesItsPiecesFromWhereTheyLie) {
  ReplyBody body;
  std::string all;
  std::vector<uint32_t> sizes;
  for (const size_t size : {1, 300, 700, 0, 90, 5000, 10, 70'000, 3, 1023, 1, 1}) {
    const std::string piece(size, static_cast<char>('a' + sizes.size()));
    body.Append(piece, {.begin = static_cast<uint32_t>(sizes.size())});
    all += piece;
    if (size > 0) sizes.push_back(static_cast<uint32_t>(size));
  }
  EXPECT_EQ(body.Joined(), all);
  EXPECT_EQ(body.pieces(), sizes.size());
  EXPECT_LE(body.held(), all.size() * 5 / 4 + 4096);
  const ReplyBody copy = body;
  EXPECT_EQ(copy.Joined(), all);
  for (const size_t most : {size_t{1}, size_t{3}, SIZE_MAX}) {
    for (const size_t most_bytes : {size_t{1}, size_t{1000}, SIZE_MAX}) {
      ReplyBody::Place place;
      std::string read;
      std::vector<ReplyBody::Piece> read_pieces;
      const std::string_view none = body.Read(place, 0, most, most_bytes, nullptr);
      EXPECT_TRUE(none.empty());
      while (read.size() < all.size()) {
        EXPECT_EQ(body.Behind(place, SIZE_MAX), all.size() - read.size());
        const size_t before = read_pieces.size();
        const std::string_view bytes = body.Read(place, SIZE_MAX, most, most_bytes, &read_pieces);
        ASSERT_FALSE(bytes.empty());
        EXPECT_TRUE(bytes.size() <= most_bytes || read_pieces.size() == before + 1);
        EXPECT_LE(read_pieces.size() - before, most);
        read += bytes;
      }
      EXPECT_EQ(read, all);
      ASSERT_EQ(read_pieces.size(), sizes.size());
      for (size_t i = 0; i < sizes.size(); ++i) {
        EXPECT_EQ(read_pieces[i].size, sizes[i]);
        EXPECT_EQ(read_pieces[i].usage.begin, i) << "as it was appended";
      }
    }
  }
}

TEST(InFlight, AnUpstreamWaitsForTheFastestOfItsReaders) {
  InFlight all({.unread = 1000});
  Running run(all, "k");
  InFlight::Seat& fast = *run.readers[0];
  InFlight::Seat& slow = run.Join();
  run.Give(600);
  EXPECT_TRUE(run.WantsMore());
  run.Give(600);
  EXPECT_FALSE(run.WantsMore());
  EXPECT_FALSE(run.WantsMore()) << "as long as nobody reads";

  EXPECT_EQ(ReadAll(fast), 1200u);
  EXPECT_EQ(run.asked.resumed, 1);
  EXPECT_TRUE(run.WantsMore()) << "the slow one keeps nobody waiting";
  for (int i = 0; i < 100; ++i) {
    run.Give(600);
    EXPECT_EQ(ReadAll(fast), 600u);
    EXPECT_TRUE(run.WantsMore());
  }
  EXPECT_EQ(run.asked.resumed, 1);

  // Nor is it forgotten: alone, it is waited for.
  run.readers.erase(run.readers.begin());
  EXPECT_FALSE(run.WantsMore());
  size_t read = 0;
  while (run.asked.resumed == 1) {
    const size_t bytes = slow.Read(true).bytes.size();
    ASSERT_GT(bytes, 0u);
    read += bytes;
  }
  EXPECT_GE(read, 61'200u - 500u);
  EXPECT_TRUE(run.WantsMore());
}

TEST(InFlight, WhoWaitsForTheWholeLetsTheUpstreamGoOn) {
  InFlight all({.unread = 1000});
  Running run(all, "k");
  InFlight::Seat& plain = run.Join();
  run.Give(5000);
  EXPECT_FALSE(run.WantsMore()) << "so far it reads like everyone else";
  EXPECT_TRUE(plain.Read(false).bytes.empty());
  EXPECT_EQ(run.asked.resumed, 1);
  run.Give(5000);
  EXPECT_TRUE(run.WantsMore());
}

TEST(InFlight, WhatIsHeldBackDelaysNothing) {
  InFlight all({.unread = 1000});
  Running stream(all, "s"), plain(all, "p", false);
  stream.Give(900);
  stream.Give(5000, true);
  stream.Give(5000);
  plain.Give(50'000);
  EXPECT_TRUE(stream.WantsMore());
  EXPECT_TRUE(plain.WantsMore());
  EXPECT_EQ(ReadAll(*stream.readers[0]), 900u);
  EXPECT_TRUE(plain.readers[0]->Read(true).bytes.empty());
}

TEST(InFlight, ReadersThatStallHoldNothingOfTheirOwn) {
  InFlight all({.unread = 100'000});
  Running run(all, "k");
  for (int i = 0; i < 100; ++i) run.Join();
  for (int i = 0; i < 200; ++i) run.Give(300);
  const uint64_t held = all.held();
  EXPECT_LE(held, 60'000u * 5 / 4 + 4096);
  const char* first = nullptr;
  for (auto& reader : run.readers) {
    const Flight::Progress progress = reader->Read(true);  // and stalls while it is sent
    EXPECT_LE(progress.bytes.size(), 16u << 10);
    if (first == nullptr) first = progress.bytes.data();
    EXPECT_EQ(progress.bytes.data(), first);
  }
  EXPECT_EQ(all.held(), held);
}

TEST(InFlight, AllRepliesTogetherAreBounded) {
  InFlight all({.unread = 1 << 20, .all = 100'000});
  {
    Running one(all, "a"), other(all, "b"), plain(all, "c", false);
    one.Give(20'000);
    EXPECT_TRUE(plain.WantsMore(30'000)) << "what a run keeps itself counts";
    EXPECT_FALSE(all.Full());
    other.Give(26'000);
    EXPECT_TRUE(all.Full()) << "no new ones";
    EXPECT_EQ(other.asked.cancelled, 0) << "what runs may use the rest";
    other.Give(30'000);
    EXPECT_EQ(other.asked.cancelled, 1);
    one.Give(1000);
    EXPECT_TRUE(plain.WantsMore(30'000));
    EXPECT_EQ(one.asked.cancelled + plain.asked.cancelled, 0)
        << "they have no more than their share";

    other.End(RunEnd::Outcome::kCancelled);
    const std::shared_ptr<Flight> flight = other.readers[0]->flight();
    boost::asio::io_context io;
    boost::asio::co_spawn(io, flight->WaitForRun(), boost::asio::detached);
    io.run();
    const RunEnd end = flight->end();
    EXPECT_EQ(end.outcome, RunEnd::Outcome::kFailed);
    EXPECT_EQ(end.cause, "replies_full");
    EXPECT_EQ(end.error.status, 503);
    for (Running* run : {&one, &other, &plain}) {
      const std::shared_ptr<Flight> ended = run->readers[0]->flight();
      all.Finish(run == &one ? "a" : run == &other ? "b" : "c", ended, {});
    }
  }
  EXPECT_EQ(all.held(), 0u);
}

}  // namespace
}  // namespace verbatim::gateway
