// Streams a recorded clip through an adaptive file with ONNX Runtime's C++ interface:
//
//   g++ -std=c++17 -O2 adaptive_stream.cpp -I$ORT/include -L$ORT/lib -lonnxruntime -o adaptive_stream
//   ./adaptive_stream MODEL.adaptive.onnx FRAMES.f32 HEIGHT WIDTH [STATE]
//
// FRAMES.f32 holds frames as the network takes them, (3, HEIGHT, WIDTH) float32 each, one after the
// other. What was learned is kept in the file STATE: where it exists the stream goes on from it,
// and it is written anew at the end. See docs/reference/adaptive-file.md for what the inputs and outputs mean.

#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

const std::string kState = "state.";
const std::string kNext = "next_";

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// A 64-bit FNV-1a hash of a file's bytes: it tells files apart, and is no protection.
uint64_t fingerprint(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  uint64_t hash = 14695981039346656037u;
  std::vector<char> block(1 << 20);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
    for (std::streamsize i = 0; i < file.gcount(); ++i) {
      hash = (hash ^ static_cast<unsigned char>(block[static_cast<size_t>(i)])) * 1099511628211u;
    }
  }
  return hash;
}

// An adaptive file with its state. The state lives in two sets of buffers: a step reads one and
// writes the other, then they change places.
class AdaptiveStream {
 public:
  explicit AdaptiveStream(const std::string& path)
      : model_(fingerprint(path)),
        session_(env_, std::basic_string<ORTCHAR_T>(path.begin(), path.end()).c_str(), options()) {
    Ort::AllocatorWithDefaultOptions allocator;
    for (size_t i = 0; i < session_.GetInputCount(); ++i) {
      const std::string name = session_.GetInputNameAllocated(i, allocator).get();
      if (!starts_with(name, kState)) continue;
      const Ort::TypeInfo type = session_.GetInputTypeInfo(i);
      const auto tensor = type.GetTensorTypeAndShapeInfo();
      for (auto& buffers : buffers_) {
        const std::vector<int64_t> shape = tensor.GetShape();
        buffers[name] = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(),
                                                 tensor.GetElementType());
      }
    }
    if (buffers_[0].empty()) throw Ort::Exception("no state.* inputs", ORT_INVALID_ARGUMENT);
    reset();
  }

  // Return to the source: every state tensor starts as zeros.
  void reset() {
    for (auto& buffers : buffers_) {
      for (auto& [name, value] : buffers) {
        std::memset(value.GetTensorMutableRawData(), 0, size_bytes(value));
      }
    }
  }

  int64_t frames() const {
    return buffers_[0].at("state.frames").GetTensorData<int64_t>()[0];
  }

  struct Answer {
    int64_t label;
    float strength;
    bool finite;
  };

  // Predict one frame and, with `update`, learn from it.
  Answer step(std::vector<float>& pixels, int64_t height, int64_t width, bool update = true) {
    Ort::IoBinding binding(session_);
    const std::vector<int64_t> shape{1, 3, height, width};
    const Ort::Value input = Ort::Value::CreateTensor<float>(memory_, pixels.data(), pixels.size(),
                                                            shape.data(), shape.size());
    const Ort::Value flag = Ort::Value::CreateTensor<bool>(memory_, &update, 1, nullptr, 0);
    binding.BindInput("pixel_values", input);
    binding.BindInput("update", flag);
    for (const char* name : {"label", "strength", "finite"}) binding.BindOutput(name, memory_);
    // Without an update every state tensor passes through, and costs nothing if it is its own
    // output.
    auto& target = update ? buffers_[1] : buffers_[0];
    for (const auto& [name, value] : buffers_[0]) binding.BindInput(name.c_str(), value);
    for (const auto& [name, value] : target) binding.BindOutput((kNext + name).c_str(), value);
    session_.Run(Ort::RunOptions{nullptr}, binding);
    const std::vector<Ort::Value> outputs = binding.GetOutputValues();
    const Answer answer{outputs[0].GetTensorData<int64_t>()[0], outputs[1].GetTensorData<float>()[0],
                        outputs[2].GetTensorData<bool>()[0]};
    if (update) std::swap(buffers_[0], buffers_[1]);
    return answer;
  }

  // Write the state: the model's fingerprint, then every tensor's bytes in the order of their names.
  // A file of another name takes the place of the last one only when it is complete.
  void save(const std::string& path) const {
    const std::string unfinished = path + ".new";
    std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
    file.write(reinterpret_cast<const char*>(&model_), sizeof model_);
    for (const auto& [name, value] : buffers_[0]) {
      file.write(static_cast<const char*>(value.GetTensorRawData()),
                 static_cast<std::streamsize>(size_bytes(value)));
    }
    file.close();
    if (!file) throw std::runtime_error(unfinished + ": cannot be written");
    std::filesystem::rename(unfinished, path);
  }

  // Go on from a state that `save` wrote; nothing changes if it does not fit this file.
  void restore(const std::string& path) {
    uint64_t expected = sizeof model_, model = 0;
    for (const auto& [name, value] : buffers_[0]) expected += size_bytes(value);
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes(expected);
    file.read(bytes.data(), static_cast<std::streamsize>(expected));
    std::memcpy(&model, bytes.data(), sizeof model);
    if (!file || file.peek() != EOF || model != model_) {
      throw std::runtime_error(path + ": expected " + std::to_string(expected) +
                               " bytes saved for this model, got another file; remove it to begin "
                               "with the source");
    }
    const char* saved = bytes.data() + sizeof model;
    for (auto& [name, value] : buffers_[0]) {
      std::memcpy(value.GetTensorMutableRawData(), saved, size_bytes(value));
      saved += size_bytes(value);
    }
  }

 private:
  static Ort::SessionOptions options() {
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(2);
    return options;
  }

  static size_t size_bytes(const Ort::Value& value) {
    const auto info = value.GetTensorTypeAndShapeInfo();
    const bool whole = info.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    return info.GetElementCount() * (whole ? sizeof(int64_t) : sizeof(float));
  }

  uint64_t model_;
  Ort::Env env_{ORT_LOGGING_LEVEL_ERROR, "adaptive"};
  Ort::Session session_;
  Ort::MemoryInfo memory_ = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::map<std::string, Ort::Value> buffers_[2];
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5 && argc != 6) {
    std::fprintf(stderr, "usage: adaptive_stream MODEL FRAMES.f32 HEIGHT WIDTH [STATE]\n");
    return 2;
  }
  try {
    AdaptiveStream stream(argv[1]);
    const std::string state = argc == 6 ? argv[5] : "";
    if (std::filesystem::exists(state)) stream.restore(state);
    const int64_t height = std::atoll(argv[3]), width = std::atoll(argv[4]);
    std::ifstream frames(argv[2], std::ios::binary);
    if (!frames) throw std::runtime_error(std::string(argv[2]) + ": cannot be read");
    std::vector<float> pixels(3 * height * width);
    const auto size = static_cast<std::streamsize>(pixels.size() * sizeof(float));
    for (int64_t index = 0; frames.read(reinterpret_cast<char*>(pixels.data()), size); ++index) {
      const auto answer = stream.step(pixels, height, width);
      if (!answer.finite) {
        std::fprintf(stderr, "frame %lld: not finite, rejected\n", static_cast<long long>(index));
        continue;
      }
      std::printf("%lld\t%lld\t%.6f\n", static_cast<long long>(index),
                  static_cast<long long>(answer.label), answer.strength);
    }
    if (!state.empty()) stream.save(state);
    std::fprintf(stderr, "learned from %lld frames\n", static_cast<long long>(stream.frames()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "adaptive_stream: %s\n", error.what());
    return 1;
  }
  return 0;
}
