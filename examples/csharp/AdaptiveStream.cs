// Streams recorded frames through an adaptive file with ONNX Runtime for .NET:
//
//   dotnet run -- MODEL.adaptive.onnx FRAMES.f32 HEIGHT WIDTH [STATE]
//
// FRAMES.f32 holds frames as the network takes them, (3, HEIGHT, WIDTH) float32 each, one after the
// other. What was learned is kept in the file STATE: where it exists the stream goes on from it,
// and it is written anew at the end. See docs/reference/adaptive-file.md for what the inputs and outputs mean.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using System.Security.Cryptography;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

/// <summary>An adaptive file with its state.</summary>
/// <remarks>
/// The state lives in two sets of buffers: a step reads one and writes the other, then they change
/// places. Nothing is copied.
/// </remarks>
public sealed class AdaptiveStream : IDisposable
{
    private readonly byte[] model;
    private readonly InferenceSession session;
    private readonly RunOptions runOptions = new();
    private Dictionary<string, OrtValue> current;
    private Dictionary<string, OrtValue> other;

    public AdaptiveStream(string path)
    {
        using (var file = File.OpenRead(path))
        {
            model = SHA256.HashData(file);
        }

        session = new InferenceSession(path);
        current = Zeros();
        other = Zeros();
        if (current.Count == 0)
        {
            throw new ArgumentException($"{path}: no state.* inputs; it is no adaptive file");
        }
    }

    /// <summary>Frames the state has learned from.</summary>
    public long Frames => current["state.frames"].GetTensorDataAsSpan<long>()[0];

    /// <summary>Predict one frame and, with <paramref name="update"/>, learn from it.</summary>
    /// <returns>The label, the strength of the correction, and whether all values were finite.</returns>
    public (long Label, float Strength, bool Finite) Step(
        float[] pixels, int height, int width, bool update = true)
    {
        using var input = OrtValue.CreateTensorValueFromMemory(
            pixels, new long[] { 1, 3, height, width });
        using var flag = OrtValue.CreateTensorValueFromMemory(
            new[] { update }, Array.Empty<long>());
        using var binding = session.CreateIoBinding();
        binding.BindInput("pixel_values", input);
        binding.BindInput("update", flag);
        foreach (var name in new[] { "label", "strength", "finite" })
        {
            binding.BindOutputToDevice(name, OrtMemoryInfo.DefaultInstance);
        }

        // Without an update every state tensor passes through, and costs nothing as its own output.
        var target = update ? other : current;
        foreach (var (name, value) in current)
        {
            binding.BindInput(name, value);
        }

        foreach (var (name, value) in target)
        {
            binding.BindOutput("next_" + name, value);
        }

        session.RunWithBinding(runOptions, binding);
        using var outputs = binding.GetOutputValues();
        if (update)
        {
            (current, other) = (other, current);
        }

        return (
            outputs[0].GetTensorDataAsSpan<long>()[0],
            outputs[1].GetTensorDataAsSpan<float>()[0],
            outputs[2].GetTensorDataAsSpan<bool>()[0]);
    }

    /// <summary>Return to the source: every state tensor starts as zeros.</summary>
    public void Reset()
    {
        Release(current);
        Release(other);
        current = Zeros();
        other = Zeros();
    }

    /// <summary>Write the state: the model's hash, then every tensor's bytes by name.</summary>
    /// <remarks>The file takes the place of the last one only when it is complete.</remarks>
    public void Save(string path)
    {
        var unfinished = path + ".new";
        using (var file = File.Create(unfinished))
        {
            file.Write(model);
            foreach (var value in InOrder())
            {
                file.Write(value.GetTensorMutableRawData());
            }
        }

        File.Move(unfinished, path, overwrite: true);
    }

    /// <summary>Go on from what <see cref="Save"/> wrote.</summary>
    /// <exception cref="InvalidDataException">It was saved for another model, or is damaged; nothing
    /// has changed then.</exception>
    public void Restore(string path)
    {
        ReadOnlySpan<byte> bytes = File.ReadAllBytes(path);
        var expected = model.Length + InOrder().Sum(value => value.GetTensorMutableRawData().Length);
        if (bytes.Length != expected || !bytes[..model.Length].SequenceEqual(model))
        {
            throw new InvalidDataException(
                $"{path}: expected {expected} bytes saved for this model, got another file; "
                + "remove it to begin with the source");
        }

        var saved = bytes[model.Length..];
        foreach (var value in InOrder())
        {
            var target = value.GetTensorMutableRawData();
            saved[..target.Length].CopyTo(target);
            saved = saved[target.Length..];
        }
    }

    public void Dispose()
    {
        Release(current);
        Release(other);
        runOptions.Dispose();
        session.Dispose();
    }

    private static void Release(Dictionary<string, OrtValue> values)
    {
        foreach (var value in values.Values)
        {
            value.Dispose();
        }
    }

    /// <summary>The state's tensors in the order of their names, as they lie in a file.</summary>
    private IEnumerable<OrtValue> InOrder() =>
        current.OrderBy(item => item.Key, StringComparer.Ordinal).Select(item => item.Value);

    private Dictionary<string, OrtValue> Zeros()
    {
        var values = new Dictionary<string, OrtValue>();
        foreach (var (name, kind) in session.InputMetadata)
        {
            if (!name.StartsWith("state.", StringComparison.Ordinal))
            {
                continue;
            }

            var shape = kind.Dimensions.Select(size => (long)size).ToArray();
            var count = (int)shape.Aggregate(1L, (product, size) => product * size);
            values[name] = kind.ElementDataType == TensorElementType.Int64
                ? OrtValue.CreateTensorValueFromMemory(new long[count], shape)
                : OrtValue.CreateTensorValueFromMemory(new float[count], shape);
        }

        return values;
    }
}

public static class Program
{
    public static int Main(string[] args)
    {
        if (args.Length is not (4 or 5))
        {
            Console.Error.WriteLine("usage: AdaptiveStream MODEL FRAMES.f32 HEIGHT WIDTH [STATE]");
            return 2;
        }

        try
        {
            Run(args);
            return 0;
        }
        catch (Exception error) when (error is IOException or ArgumentException
            or FormatException or InvalidDataException or OnnxRuntimeException)
        {
            Console.Error.WriteLine($"AdaptiveStream: {error.Message}");
            return 1;
        }
    }

    private static void Run(string[] args)
    {
        var (height, width) = (int.Parse(args[2]), int.Parse(args[3]));
        var state = args.Length == 5 ? args[4] : null;
        using var stream = new AdaptiveStream(args[0]);
        if (File.Exists(state))
        {
            stream.Restore(state);
        }

        using var frames = File.OpenRead(args[1]);
        var bytes = new byte[3 * height * width * sizeof(float)];
        for (var index = 0; frames.ReadAtLeast(bytes, bytes.Length, false) == bytes.Length; index++)
        {
            var pixels = MemoryMarshal.Cast<byte, float>(bytes).ToArray();
            var (label, strength, finite) = stream.Step(pixels, height, width);
            if (!finite)
            {
                Console.Error.WriteLine($"frame {index}: not finite, rejected");
                continue;
            }

            // Of one format whatever the machine's language.
            Console.WriteLine(FormattableString.Invariant($"{index}\t{label}\t{strength:F6}"));
        }

        if (state is not null)
        {
            stream.Save(state);
        }

        Console.Error.WriteLine($"learned from {stream.Frames} frames");
    }
}
