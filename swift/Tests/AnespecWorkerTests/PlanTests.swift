// Needs the stand-in for Core ML.
#if os(Linux)
import XCTest

@testable import AnespecWorker

final class PlanTests: XCTestCase {
    override func tearDown() {
        unsetenv("ANESPEC_STANDIN_PLAN")
    }

    func testLayersAreReadOffNames() {
        XCTAssertEqual(layersByName(["a", "layer_0_q", "b", "layer_12_k", "layer_x", "c"]), [0, 0, 12, 12, 12, 12])
        XCTAssertEqual(layersByName(["a", "layer_x"]), [nil, nil])
    }

    func testOperationsAreListedWithTheirDevices() async throws {
        let file = "/tmp/anespec-plan-\(getpid())"
        defer { unlink(file) }
        let plan = """
            {"functions":[{"name":"main","operations":[
              {"operator":"const","outputs":["w"]},
              {"operator":"constexpr_lut_to_dense","outputs":["weight"]},
              {"operator":"ios18.conv","outputs":["layer_0_q"],"device":"ane","supported":["ane","cpu"],"cost":0.25},
              {"operator":"cond","outputs":["c"],"device":"cpu","blocks":[[{"operator":"ios18.add","outputs":["inner"],"device":"gpu"}]]},
              {"operator":"write_state","inputs":{"input":["k_0"]}}]}]}
            """
        try Data(plan.utf8).write(to: URL(fileURLWithPath: file))
        setenv("ANESPEC_STANDIN_PLAN", file, 1)
        let report = try await PlanReport.json(of: "/m.mlmodelc", units: .all, function: nil, hint: .none, name: "shards/a", sha256: "ab")
        XCTAssertEqual(report["shard"], .string("shards/a"))
        let operations = report["functions"][0]["operations"]
        XCTAssertEqual((0..<4).map { operations[$0]["name"] }, ["layer_0_q", "c", "inner", "k_0"].map(JSON.string))
        XCTAssertEqual((0..<4).map { operations[$0]["kind"] }, ["conv", "cond", "add", "write_state"].map(JSON.string))
        XCTAssertEqual((0..<4).map { operations[$0]["device"] }, ["ane", "cpu", "gpu", "none"].map(JSON.string))
        XCTAssertEqual(operations[0]["cost"], .number(0.25))
        XCTAssertEqual(operations[0]["supported"], .array([.string("ane"), .string("cpu")]))
        XCTAssertEqual(operations[4], .null)
    }
}
#endif
