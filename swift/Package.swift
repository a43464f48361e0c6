// swift-tools-version: 6.0
import PackageDescription

// On Linux a module named CoreML stands in for Core ML, so that the worker's sources are the same.
#if os(Linux)
let standIn: [Target] = [.target(name: "CoreML", path: "Sources/StandIn")]
let coreML: [Target.Dependency] = ["CoreML"]
#else
let standIn: [Target] = []
let coreML: [Target.Dependency] = []
#endif

let package = Package(
    name: "anespec-worker",
    platforms: [.macOS(.v15)],
    products: [
        .library(name: "AnespecWorker", targets: ["AnespecWorker"]),
        .executable(name: "anespec-worker", targets: ["anespec-worker"]),
    ],
    targets: standIn + [
        .target(name: "AnespecWorker", dependencies: coreML),
        .executableTarget(name: "anespec-worker", dependencies: ["AnespecWorker"]),
        .testTarget(name: "AnespecWorkerTests", dependencies: ["AnespecWorker"] + coreML),
    ],
    swiftLanguageModes: [.v6]
)
