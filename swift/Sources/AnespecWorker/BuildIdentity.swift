/// What this worker was built from, as the sha256 of its sources.
///
/// `anespec worker build` writes this file anew in its copy of the sources; zeros are a build by hand.
public let buildIdentity = "0000000000000000000000000000000000000000000000000000000000000000"

/// The version of messages and arena (docs/worker.md).
public let protocolVersion: UInt32 = 1
