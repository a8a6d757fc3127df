// The archive: what is written reads back, and whatever differs in a byte is refused.
#include "audit/archive.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "store/data_folder.h"
#include "tests/store/ledger_fixture.h"

namespace verbatim::audit {
namespace {

using Files = std::vector<std::pair<std::string, std::string>>;

std::string Pack(const Files& files) {
  store::TemporaryFolder folder;
  const std::string path = folder.path("archive.zip");
  Result<ArchiveWriter> writer = ArchiveWriter::Create(path);
  CHECK(writer.ok());
  for (const auto& [name, bytes] : files) CHECK(writer->Add(name, bytes).ok());
  CHECK(writer->Finish().ok());
  struct stat facts {};
  CHECK(::stat(path.c_str(), &facts) == 0 && (facts.st_mode & 0777) == 0600);
  return store::ReadFile(path).value();
}

const Files kFiles = {
    {"a.txt", "text"}, {"entries/0/request", std::string("\0\xFF\n", 3)}, {"e", ""}};

TEST(Archive, WhatIsWrittenReadsBack) {
  const std::string archive = Pack(kFiles);
  const auto members = ReadArchive(archive).value();
  ASSERT_EQ(members.size(), kFiles.size());
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i].name, kFiles[i].first);
    EXPECT_EQ(members[i].bytes, kFiles[i].second);
  }
  EXPECT_EQ(Pack(kFiles), archive);
}

// A payload that looks like headers, and the list of one, is a payload.
TEST(Archive, ContentsAreNeverTakenForStructure) {
  const std::string inner = Pack(kFiles);
  const std::string archive = Pack({{"inner.zip", inner}, {"b", inner + inner}});
  const auto members = ReadArchive(archive).value();
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[1].bytes, inner + inner);
}

TEST(Archive, EveryChangedByteAndEveryCutIsRefused) {
  const std::string archive = Pack(kFiles);
  for (size_t at = 0; at < archive.size(); ++at) {
    for (const int bit : {1, 0x80}) {
      std::string damaged = archive;
      damaged[at] = static_cast<char>(damaged[at] ^ bit);
      EXPECT_FALSE(ReadArchive(damaged).ok()) << at;
    }
    EXPECT_FALSE(ReadArchive(archive.substr(0, at)).ok()) << at;
    EXPECT_FALSE(ReadArchive(archive.substr(at + 1)).ok()) << at;
  }
  EXPECT_FALSE(ReadArchive(archive + '\0').ok());
}

TEST(Archive, NamesAreRelativeAndPlain) {
  for (const char* name : {"a", "a/b", "entries/0/leaf.json", "..a", "a..", "A-Z_9"}) {
    EXPECT_TRUE(IsMemberName(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a//b"), std::string("."),
        std::string(".."), std::string("../a"), std::string("a/../b"), std::string("a\\b"),
        std::string("a b"), std::string("a\0b", 3), std::string("\xC3\xA9"),
        std::string(101, 'a')}) {
    EXPECT_FALSE(IsMemberName(name)) << name;
  }
}

TEST(Archive, AWriterTakesANameOnceAndMakesNewFilesOnly) {
  store::TemporaryFolder folder;
  Result<ArchiveWriter> writer = ArchiveWriter::Create(folder.path("x"));
  ASSERT_TRUE(writer.ok());
  EXPECT_TRUE(writer->Add("a", "1").ok());
  EXPECT_FALSE(writer->Add("a", "2").ok());
  EXPECT_FALSE(writer->Add("../a", "2").ok());
  EXPECT_EQ(ArchiveWriter::Create(folder.path("x")).error().code, Code::kAlreadyExists);
}

TEST(Archive, MoreMembersThanSixteenBitsCount) {
  for (const size_t count : {size_t{0xFFFE}, size_t{0xFFFF}, size_t{0x10000}}) {
    Files files;
    for (size_t i = 0; i < count; ++i) files.emplace_back(std::to_string(i), "");
    const std::string archive = Pack(files);
    const Result<std::vector<Member>> members = ReadArchive(archive);
    ASSERT_TRUE(members.ok()) << count << ": " << members.error().message;
    EXPECT_EQ(members->size(), count);
    EXPECT_EQ(archive.find("PK\6\6") != std::string::npos, count >= 0xFFFF);
  }
}

}  // namespace
}  // namespace verbatim::audit
