//! Tollgate beside its peers. The benchmarks are in `benches`; what this library holds are tests: the page `tollgate::guide::peers`, in
//! whose examples both sides run.

#[cfg(doctest)]
#[doc = include_str!("../../../src/guide/peers.md")]
struct Peers;
