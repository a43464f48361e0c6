import AnespecWorker
import Foundation

/// `anespec-worker`: see docs/worker.md.
@main
struct AnespecWorkerTool {
    static func main() async {
        exit(await CommandLineTool.run(Array(CommandLine.arguments.dropFirst())))
    }
}
