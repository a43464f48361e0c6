import Foundation

/// The error in a reply.
public struct WorkerError: Error, Equatable {
    /// The origin of the error (docs/worker.md, Errors).
    public enum Kind: String, Sendable {
        case request, load, predict, arena, `internal`
    }

    public var kind: Kind
    /// The domain of the NSError, if Core ML refused.
    public var domain: String?
    public var code: Int?
    public var text: String
    /// The path of the shard that caused the error.
    public var stage: String?

    public init(_ kind: Kind, _ text: String, stage: String? = nil) {
        self.kind = kind
        self.text = text
        self.stage = stage
    }

    /// Make an error from Core ML's: its text, and then the texts of its underlying errors.
    public init(_ kind: Kind, _ error: any Error, stage: String?) {
        let raw = error as NSError
        self.init(kind, WorkerError.text(of: raw), stage: stage)
        domain = raw.domain
        code = raw.code
    }

    private static func text(of error: NSError) -> String {
        guard let under = error.userInfo[NSUnderlyingErrorKey] as? NSError else { return error.localizedDescription }
        return "\(error.localizedDescription) [\(under.domain) \(under.code): \(text(of: under))]"
    }

    /// The error's fields in a reply.
    public var json: JSON {
        .object([
            "kind": .string(kind.rawValue),
            "domain": domain.map(JSON.string) ?? .null,
            "code": code.map(JSON.integer) ?? .null,
            "text": .string(text),
            "stage": stage.map(JSON.string) ?? .null,
        ])
    }
}
