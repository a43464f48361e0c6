import AnespecWorker
import Foundation

/// The executable `anespec-worker` (docs/worker.md).
@main
struct AnespecWorkerTool {
    static func main() async {
        exit(await CommandLineTool.run(Array(CommandLine.arguments.dropFirst())))
    }
}
