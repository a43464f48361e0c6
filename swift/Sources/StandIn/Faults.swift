import Foundation

/// The faults that the file `ANESPEC_STANDIN_FAULTS` plants (docs/worker.md, The stand-in).
final class Faults {
    enum Place: String, Decodable {
        case compile, load, predict, plan
    }

    private struct Planted: Decodable {
        enum Action: String, Decodable {
            case fail, kill, abort, decline, refuse
        }

        /// A part of the model's path; nil means every model.
        let path: String?
        let at: Place
        /// The call that fails, from 1; with `every` all later calls fail too.
        let nth: Int?
        let every: Bool?
        let action: Action
        let code: Int?
        let domain: String?
        let text: String?
        /// A file that is created when the fault occurs; if it exists already, the fault does not occur.
        let once: String?
    }

    private let planted: [Planted]
    private var calls = 0

    init(path: String) throws {
        guard let file = ProcessInfo.processInfo.environment["ANESPEC_STANDIN_FAULTS"] else {
            planted = []
            return
        }
        let all = try JSONDecoder().decode([Planted].self, from: Data(contentsOf: URL(fileURLWithPath: file)))
        planted = all.filter { fault in fault.path.map(path.contains) ?? true }
    }

    /// Whether outputs are written elsewhere than to their backings.
    var declinesBackings: Bool {
        planted.contains { $0.action == .decline }
    }

    /// Whether a prediction with backings fails.
    var refusesBackings: Bool {
        planted.contains { $0.action == .refuse }
    }

    /// Count a call; throw or end the process if a fault is planted there.
    func raise(at place: Place) throws {
        if place == .predict { calls += 1 }
        for fault in planted where fault.at == place && [.fail, .kill, .abort].contains(fault.action) {
            if place == .predict {
                let nth = fault.nth ?? 1
                guard calls == nth || (fault.every ?? false) && calls > nth else { continue }
            }
            if let once = fault.once {
                guard FileManager.default.createFile(atPath: once, once: ()) else { continue }
            }
            if fault.action == .kill { kill(getpid(), SIGKILL) }
            if fault.action == .abort { abort() }
            throw NSError(
                domain: fault.domain ?? "com.apple.CoreML", code: fault.code ?? 0,
                userInfo: [NSLocalizedDescriptionKey: fault.text ?? "a planted fault"])
        }
    }
}

extension FileManager {
    /// Create the file; return false if it existed already.
    fileprivate func createFile(atPath path: String, once: Void) -> Bool {
        let descriptor = open(path, O_CREAT | O_EXCL | O_WRONLY, 0o600)
        guard descriptor >= 0 else { return false }
        close(descriptor)
        return true
    }
}
