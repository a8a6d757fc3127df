// The embedded engine as a backend: renders and tokenises prompts with the model's own template and
// tokenizer, and runs one engine request per choice. See backend.h.
#pragma once

#include <memory>

#include "engine/engine.h"
#include "gateway/backend.h"

namespace verbatim::gateway {

class EngineBackend : public Backend {
 public:
  // The engine outlives every run: destroy it after the pipeline has drained.
  explicit EngineBackend(std::shared_ptr<engine::Engine> engine);

  Answered<GenerationRequest> Decode(Endpoint endpoint, const json::Value& body) const override;
  Answered<std::shared_ptr<const PreparedRequest>> Prepare(
      const GenerationRequest& request, const PrepareOptions& options) const override;
  json::Value Describe() const override;

 private:
  std::shared_ptr<engine::Engine> engine_;
};

}  // namespace verbatim::gateway
