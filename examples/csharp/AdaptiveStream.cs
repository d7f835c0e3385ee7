// Streams recorded frames through an adaptive file with ONNX Runtime for .NET:
//
//   dotnet run -- MODEL.adaptive.onnx FRAMES.f32 HEIGHT WIDTH
//
// FRAMES.f32 holds frames as the network takes them, (3, HEIGHT, WIDTH) float32 each, one after the
// other. See docs/adaptive-onnx.md for what the inputs and outputs mean.

using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Runtime.InteropServices;
using Microsoft.ML.OnnxRuntime;

/// <summary>An adaptive file with its state.</summary>
/// <remarks>
/// The state lives in two sets of buffers: a step reads one and writes the other, then they change
/// places. Nothing is copied.
/// </remarks>
public sealed class AdaptiveStream : IDisposable
{
    private readonly InferenceSession session;
    private readonly RunOptions runOptions = new();
    private Dictionary<string, OrtValue> current;
    private Dictionary<string, OrtValue> other;

    public AdaptiveStream(string path)
    {
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
        if (args.Length != 4)
        {
            Console.Error.WriteLine("usage: AdaptiveStream MODEL FRAMES.f32 HEIGHT WIDTH");
            return 2;
        }

        var (height, width) = (int.Parse(args[2]), int.Parse(args[3]));
        using var stream = new AdaptiveStream(args[0]);
        using var frames = File.OpenRead(args[1]);
        var bytes = new byte[3 * height * width * sizeof(float)];
        for (var index = 0; frames.ReadAtLeast(bytes, bytes.Length, false) == bytes.Length; index++)
        {
            var pixels = MemoryMarshal.Cast<byte, float>(bytes).ToArray();
            var (label, strength, finite) = stream.Step(pixels, height, width);
            Console.WriteLine(
                finite ? $"{index}\t{label}\t{strength:F6}" : $"{index}\tnot finite, rejected");
        }

        Console.Error.WriteLine($"learned from {stream.Frames} frames");
        return 0;
    }
}
