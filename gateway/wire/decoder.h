// What the decoders of all endpoints share: the table's checks, sampling, stop strings, text parts,
// and the words of their errors. Only openai.cc, responses.cc and messages.cc include it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "gateway/wire/fields.h"
#include "gateway/wire/openai.h"

namespace verbatim::gateway {

HttpError BadRequest(std::string message, std::string param, std::string code);
HttpError WrongType(const std::string& param, const char* expected, const json::Value& got);
HttpError Missing(const std::string& param);
HttpError Invalid(const std::string& param, const std::string& what,
                  const char* code = "invalid_value");

// One request. A member that returns bool gives false where it failed, and error_ says why.
class Decoder {
 public:
  Decoder(Endpoint endpoint, json::Value body);
  virtual ~Decoder() = default;
  Decoded<GenerationRequest> Run();

 protected:
  // What only this endpoint has; after the fields that all have.
  virtual bool Own() = 0;

  bool Fail(HttpError error);

  // The field where this endpoint has it and it is present and not null; its type and range were
  // checked by its row. One that only other endpoints have was checked by nobody and is ignored.
  const json::Value* Get(std::string_view name) const;
  bool Flag(std::string_view name) const;

  // A string or a list of strings, `most` at most.
  bool Stops(const char* name, size_t most);

  // The text of a value that is a string or a list of objects with a `type`: those of type "text",
  // `other` or `another` have it in their "text". An object of another type is what the engine
  // cannot read, and counts as empty.
  bool Text(const std::string& at, const json::Value& content, std::string& text,
            std::string_view other = {}, std::string_view another = {});
  // The role of a message that must be an object and have one of these roles.
  bool Role(const std::string& at, const json::Value& message, std::string_view roles);
  // What CheckEngine will say: of several the first.
  void CannotRead(const std::string& at);
  void Unsupported(HttpError error);

  GenerationRequest r_;
  std::optional<HttpError> error_;

 private:
  bool Fields();
  bool CheckOne(const Field* field, const std::string& name, const json::Value& value);
  bool Model();
  bool Sampling();
  bool Bias();
  bool OneStop(const std::string& param, const json::Value& v);
  double Number(std::string_view name, double absent) const;
};

}  // namespace verbatim::gateway
