import CoreML
import Foundation

/// The commands of `anespec-worker`.
public enum CommandLineTool {
    private static let usage = """
        usage: anespec-worker serve --socket FD --arena FD
               anespec-worker plan SHARD.mlmodelc [--compute-units U] [--function NAME] [--reshape-hint H]
                                   [--shard NAME] [--sha256 HEX]
               anespec-worker compile PACKAGE.mlpackage FOLDER
               anespec-worker version

        """

    /// Run a command; return the exit status.
    public static func run(_ words: [String]) async -> Int32 {
        do throws(WorkerError) {
            return try await carryOut(words)
        } catch {
            print(JSON.object(["ok": .bool(false), "error": error.json]))
            return 1
        }
    }

    private static func carryOut(_ words: [String]) async throws(WorkerError) -> Int32 {
        guard let (plain, options) = Arguments.read(Array(words.dropFirst())) else { return wrongUsage() }
        switch (words.first, plain.count) {
        case ("serve", 0):
            guard Set(options.keys) == ["--socket", "--arena"], let socket = options["--socket"].flatMap({ Int32($0) }),
                let arena = options["--arena"].flatMap({ Int32($0) })
            else { return wrongUsage() }
            return serve(socket: socket, arena: arena)
        case ("plan", 1):
            let known: [String: MLComputeUnits] = ["cpuOnly": .cpuOnly, "cpuAndNeuralEngine": .cpuAndNeuralEngine, "all": .all]
            guard Set(options.keys).isSubset(of: ["--compute-units", "--function", "--reshape-hint", "--shard", "--sha256"]),
                let units = known[options["--compute-units"] ?? "cpuAndNeuralEngine"],
                let hint = ReshapeHint(rawValue: options["--reshape-hint"] ?? "none")
            else { return wrongUsage() }
            print(
                try await PlanReport.json(
                    of: plain[0], units: units, function: options["--function"], hint: hint,
                    name: options["--shard"] ?? plain[0], sha256: options["--sha256"] ?? ""))
        case ("compile", 2) where options.isEmpty:
            let path = try await compile(package: plain[0], into: plain[1])
            FileHandle.standardOutput.write(Data((path + "\n").utf8))
        case ("version", 0) where options.isEmpty:
            print(JSON.object(["protocol": .integer(Int(protocolVersion)), "build": .string(buildIdentity)]))
        default: return wrongUsage()
        }
        return 0
    }

    private static func wrongUsage() -> Int32 {
        FileHandle.standardError.write(Data(usage.utf8))
        return 64
    }

    private static func print(_ value: JSON) {
        FileHandle.standardOutput.write(Data(value.encoded + [10]))
    }
}

/// The words of a command line: plain words, and pairs of an option and its value.
enum Arguments {
    /// Parse the words; return nil if an option lacks its value or occurs twice.
    static func read(_ words: [String]) -> (plain: [String], options: [String: String])? {
        var plain: [String] = []
        var options: [String: String] = [:]
        var rest = words[...]
        while let word = rest.popFirst() {
            if word.hasPrefix("--") {
                guard let value = rest.popFirst(), options.updateValue(value, forKey: word) == nil else { return nil }
            } else {
                plain.append(word)
            }
        }
        return (plain, options)
    }
}
