//! The examples are in `examples`; what this library holds are tests: the page `tollgate::guide::tutorials`, whose examples need more
//! packages than `tollgate`.

#[cfg(doctest)]
#[doc = include_str!("../../../src/guide/tutorials.md")]
struct Tutorials;
