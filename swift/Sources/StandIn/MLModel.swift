import Foundation

/// The stand-in for Core ML's type (MLModel.h, MLModel+MLState.h, CoreML.swiftinterface), with predictions by a package server.
public class MLModel: NSObject {
    public let modelDescription: MLModelDescription
    public let configuration: MLModelConfiguration
    private let opened: OpenedPackage
    private let faults: Faults

    /// Load a "compiled model", here a folder that names the package (docs/worker.md, The stand-in).
    public init(contentsOf url: URL, configuration: MLModelConfiguration) throws {
        self.configuration = configuration
        faults = try Faults(path: url.path)
        try faults.raise(at: .load)
        opened = try PackageServer.shared().open(url.path, function: configuration.functionName)
        modelDescription = opened.description
    }

    public class func load(
        contentsOf url: URL, configuration: MLModelConfiguration = MLModelConfiguration()
    ) async throws -> MLModel {
        try MLModel(contentsOf: url, configuration: configuration)
    }

    /// Make a folder that names the package, among the temporary files; return it.
    public class func compileModel(at url: URL) async throws -> URL {
        try Faults(path: url.path).raise(at: .compile)
        let files = FileManager.default
        guard files.fileExists(atPath: url.appendingPathComponent("Manifest.json").path) else {
            throw standInError(0, "\(url.path) is no package")
        }
        let name = url.deletingPathExtension().lastPathComponent
        let folder = files.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        let compiled = folder.appendingPathComponent(name + ".mlmodelc")
        try files.createDirectory(at: compiled, withIntermediateDirectories: true)
        let package = url.standardizedFileURL.resolvingSymlinksInPath().path
        try Data(package.utf8).write(to: compiled.appendingPathComponent("package"))
        return compiled
    }

    public func makeState() -> MLState {
        MLState(
            buffers: modelDescription.stateDescriptionsByName.mapValues { description in
                let sizes = description.stateConstraint?.bufferShape ?? []
                guard let zeros = try? MLMultiArray(shape: sizes.map(NSNumber.init(value:)), dataType: .float16) else {
                    fatalError("no state of the sizes \(sizes)")
                }
                return zeros
            })
    }

    public func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider {
        try prediction(from: input, options: MLPredictionOptions())
    }

    public func prediction(
        from input: any MLFeatureProvider, options: MLPredictionOptions
    ) throws -> any MLFeatureProvider {
        try prediction(from: input, using: makeState(), options: options)
    }

    public func prediction(from inputFeatures: any MLFeatureProvider, using state: MLState) throws -> any MLFeatureProvider {
        try prediction(from: inputFeatures, using: state, options: MLPredictionOptions())
    }

    public func prediction(
        from inputFeatures: any MLFeatureProvider, using state: MLState, options: MLPredictionOptions
    ) throws -> any MLFeatureProvider {
        try faults.raise(at: .predict)
        if faults.refusesBackings, !options.outputBackings.isEmpty { throw standInError(0, "an output backing is not allowed") }
        var inputs: [String: MLMultiArray] = [:]
        for name in modelDescription.inputDescriptionsByName.keys {
            guard let array = inputFeatures.featureValue(for: name)?.multiArrayValue else {
                throw standInError(1, "the input \(name) is missing")
            }
            inputs[name] = array
        }
        let made = try opened.predict(inputs, state.buffers)
        return try MLDictionaryFeatureProvider(
            dictionary: made.reduce(into: [String: Any]()) { values, output in
                let backing = faults.declinesBackings ? nil : options.outputBackings[output.key] as? MLMultiArray
                values[output.key] = try output.value.placed(in: backing)
            })
    }

    public func prediction(
        from input: any MLFeatureProvider, options: MLPredictionOptions = MLPredictionOptions()
    ) async throws -> any MLFeatureProvider {
        try await prediction(from: input, using: makeState(), options: options)
    }

    public func prediction(
        from input: any MLFeatureProvider, using state: MLState, options: MLPredictionOptions = MLPredictionOptions()
    ) async throws -> any MLFeatureProvider {
        func synchronously() throws -> any MLFeatureProvider {
            try prediction(from: input, using: state, options: options)
        }
        return try synchronously()
    }
}

/// Return an error in Core ML's domain.
func standInError(_ code: Int, _ text: String) -> NSError {
    NSError(domain: "com.apple.CoreML", code: code, userInfo: [NSLocalizedDescriptionKey: text])
}
