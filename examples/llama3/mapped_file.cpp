// SPDX-FileCopyrightText: 2026 The diffkv authors
// SPDX-License-Identifier: Apache-2.0
#include "llama3/mapped_file.hpp"

#include "llama3/file_error.hpp"

#include <fcntl.h>     // open
#include <sys/mman.h>  // mmap
#include <sys/stat.h>  // fstat
#include <unistd.h>    // close

#include <cerrno>
#include <cstring>       // strerror
#include <system_error>  // error_code
#include <utility>       // exchange

namespace llama3 {
namespace {
[[noreturn]] void fail(std::filesystem::path const& path, int code)
{
  throw file_error(path.string() + ": cannot be read: " + std::strerror(code));
}
}  // namespace

mapped_file::mapped_file(std::filesystem::path const& path)
{
  // Not blocking: a pipe in the place of a file must not make us wait for a writer.
  int const descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) { fail(path, errno); }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    int const code = errno;
    ::close(descriptor);
    fail(path, code);
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw file_error(path.string() + ": is not a file");
  }
  auto const size = static_cast<std::size_t>(status.st_size);
  if (size > 0) {
    void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      int const code = errno;
      ::close(descriptor);
      fail(path, code);
    }
    data_ = static_cast<std::byte const*>(address);
    size_ = size;
  }
  ::close(descriptor);  // the mapping stays
}

mapped_file::~mapped_file() { unmap(); }

mapped_file::mapped_file(mapped_file&& other) noexcept
  : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0))
{}

mapped_file& mapped_file::operator=(mapped_file&& other) noexcept
{
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void mapped_file::unmap() noexcept
{
  if (data_ != nullptr) { ::munmap(const_cast<std::byte*>(data_), size_); }
}

std::string read_text_file(std::filesystem::path const& path, std::size_t max_bytes)
{
  mapped_file const file{path};
  if (file.size() > max_bytes) {
    throw file_error(path.string() + ": has " + std::to_string(file.size()) +
                     " bytes, more than the " + std::to_string(max_bytes) + " that are read");
  }
  if (file.size() == 0) { return {}; }
  return {reinterpret_cast<char const*>(file.data()), file.size()};
}

void expect_model_folder(std::filesystem::path const& folder)
{
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) { return; }
  throw file_error(
    folder.string() +
    (std::filesystem::exists(folder, ignored)
       ? ": is a file; scripts/get_model.py --gguf makes a model folder of a GGUF file"
       : ": no such folder; scripts/get_model.py makes one"));
}
}  // namespace llama3
