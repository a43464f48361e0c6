import CoreML
import Foundation

/// Compile a package into a folder; an earlier result with the same name is replaced.
///
/// - Returns: the path of the `.mlmodelc`.
/// - Throws: a `load` WorkerError if Core ML refuses the package or the folder cannot be written.
public func compile(package: String, into folder: String) async throws(WorkerError) -> String {
    let source = URL(fileURLWithPath: package)
    let target = URL(fileURLWithPath: folder)
        .appendingPathComponent(source.deletingPathExtension().lastPathComponent + ".mlmodelc")
    do {
        let made = try await MLModel.compileModel(at: source)
        let files = FileManager.default
        try files.createDirectory(at: target.deletingLastPathComponent(), withIntermediateDirectories: true)
        if files.fileExists(atPath: target.path) { try files.removeItem(at: target) }
        try files.moveItem(at: made, to: target)
        return target.path
    } catch {
        throw WorkerError(.load, error, stage: package)
    }
}
