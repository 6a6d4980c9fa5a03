#include "sys/mapped_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sys/fd.h"
#include "sys/process.h"

namespace yoke {
namespace {

// A path in the folder for temporary files; whatever is there is removed at the end.
class TempPath {
 public:
  explicit TempPath(const std::string& name)
      : path_(testing::TempDir() + "yoke_" + std::to_string(::getpid()) + "_" + name) {}
  ~TempPath() { ::unlink(path_.c_str()); }
  TempPath(const TempPath&) = delete;
  TempPath& operator=(const TempPath&) = delete;

  const std::string& str() const { return path_; }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

 private:
  std::string path_;
};

TEST(MappedFileTest, HoldsTheBytesOfTheFileAndMoves) {
  const TempPath path("bytes");
  path.Write(std::string("a\0b", 3));
  MappedFile file = MappedFile::Open(path.str()).value();
  const std::byte* const data = file.bytes().data();
  MappedFile moved;
  moved = std::move(file);
  EXPECT_TRUE(file.bytes().empty());  // NOLINT(bugprone-use-after-move): that is the promise
  ASSERT_EQ(moved.bytes().size(), 3U);
  EXPECT_EQ(moved.bytes().data(), data);
  EXPECT_EQ(moved.bytes()[1], std::byte{0});
  EXPECT_EQ(moved.bytes()[2], std::byte{'b'});
}

TEST(MappedFileTest, RefusesWhatCannotBeMappedAndNamesIt) {
  const TempPath missing("missing");
  const TempPath empty("empty");
  empty.Write("");
  const TempPath pipe("pipe");
  ASSERT_EQ(::mkfifo(pipe.str().c_str(), S_IRUSR | S_IWUSR), 0);
  const std::string directory = testing::TempDir();
  struct Case {
    const char* name;
    std::string path;
    ErrorCode code;
    std::string message;
  };
  const Case cases[] = {
      {"missing", missing.str(), ErrorCode::kNotFound,
       "cannot open " + missing.str() + ": No such file or directory"},
      {"below a file", empty.str() + "/x", ErrorCode::kNotFound,
       "cannot open " + empty.str() + "/x: Not a directory"},
      {"empty", empty.str(), ErrorCode::kCorrupt, empty.str() + ": the file is empty"},
      {"directory", directory, ErrorCode::kInvalidArgument,
       directory + ": expected a regular file, got a directory"},
      {"pipe without a writer", pipe.str(), ErrorCode::kInvalidArgument,
       pipe.str() + ": expected a regular file, got something else"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Result<MappedFile> file = MappedFile::Open(c.path);
    ASSERT_FALSE(file.has_value());
    EXPECT_EQ(file.error().code(), c.code);
    EXPECT_EQ(file.error().message(), c.message);
  }
}

#ifdef __linux__

// Which pages of the mapping this process holds, as the kernel tells it (top bit of each entry).
std::vector<bool> PresentPages(std::span<const std::byte> bytes, size_t page) {
  const size_t num_pages = (bytes.size() + page - 1) / page;
  std::vector<uint64_t> entries(num_pages);
  const size_t entries_bytes = num_pages * sizeof(uint64_t);
  const Fd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const size_t offset = reinterpret_cast<uintptr_t>(bytes.data()) / page * sizeof(uint64_t);
  EXPECT_EQ(::pread(pagemap.get(), entries.data(), entries_bytes, static_cast<off_t>(offset)),
            static_cast<ssize_t>(entries_bytes));
  std::vector<bool> present;
  for (const uint64_t entry : entries) present.push_back((entry >> 63) != 0);
  return present;
}

TEST(MappedFileTest, DropsTheWholePagesInsideAPartAndNoOthers) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const TempPath path("pages");
  path.Write(std::string(4 * page + 100, 'x'));  // 5 pages
  const MappedFile file = MappedFile::Open(path.str()).value();
  const std::span<const std::byte> bytes = file.bytes();
  struct Case {
    const char* name;
    size_t begin, end;
    std::vector<bool> present;
  };
  const Case cases[] = {
      {"inside one page", 1, page - 1, {true, true, true, true, true}},
      {"two halves", page / 2, page + page / 2, {true, true, true, true, true}},
      {"one page exactly", page, 2 * page, {true, false, true, true, true}},
      {"two pages and edges", page - 1, 3 * page + 1, {true, false, false, true, true}},
      {"up to the end of the file", 3 * page + 1, bytes.size(), {true, true, true, true, false}},
      {"all", 0, bytes.size(), {false, false, false, false, false}},
      {"nothing", page, page, {true, true, true, true, true}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto sum = [](int total, std::byte b) { return total + std::to_integer<int>(b); };
    // Reads every page, which also shows that dropped pages come back.
    ASSERT_EQ(std::accumulate(bytes.begin(), bytes.end(), 0, sum),
              static_cast<int>(bytes.size()) * 'x');
    ASSERT_EQ(PresentPages(bytes, page), std::vector<bool>(5, true));
    file.DropPages(bytes.subspan(c.begin, c.end - c.begin));
    EXPECT_EQ(PresentPages(bytes, page), c.present);
  }
}

#endif

TEST(MappedFileDeathTest, DroppingForeignBytesIsABug) {
  const TempPath path("foreign");
  path.Write("x");
  const MappedFile file = MappedFile::Open(path.str()).value();
  const std::byte foreign = {};
  EXPECT_DEATH(file.DropPages({&foreign, 1}), "CHECK failed");
}

TEST(ReadTextFileTest, ReadsUpToTheLimit) {
  const TempPath path("text");
  for (const size_t size : {size_t{0}, size_t{1}, size_t{65536}, size_t{200'000}}) {
    std::string text(size, 'a');
    if (size > 0) text.back() = 'z';
    path.Write(text);
    EXPECT_EQ(ReadTextFile(path.str(), size).value(), text);
    if (size == 0) continue;
    const Result<std::string> refused = ReadTextFile(path.str(), size - 1);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message(),
              path.str() + ": expected at most " + std::to_string(size - 1) + " bytes, got more");
  }
}

TEST(ReadTextFileTest, ReadsPipesToTheirEnd) {
  Pipe pipe = MakePipe().value();
  ASSERT_EQ(::write(pipe.write.get(), "text", 4), 4);
  pipe.write = Fd();
  EXPECT_EQ(ReadTextFile("/dev/fd/" + std::to_string(pipe.read.get()), 100).value(), "text");
}

TEST(ReadTextFileTest, RefusesMissingFilesAndDirectories) {
  const TempPath missing("missing");
  const Result<std::string> no_file = ReadTextFile(missing.str(), 100);
  ASSERT_FALSE(no_file.has_value());
  EXPECT_EQ(no_file.error().code(), ErrorCode::kNotFound);
  const Result<std::string> directory = ReadTextFile(testing::TempDir(), 100);
  ASSERT_FALSE(directory.has_value());
  EXPECT_EQ(directory.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(directory.error().message(), "cannot read " + testing::TempDir() + ": Is a directory");
}

}  // namespace
}  // namespace yoke
