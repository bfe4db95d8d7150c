//! The examples as their users run them, and the parts of them that can be wrong. Build the examples first: `ci/test packages` does.

mod gateway;
mod lab;
mod llm_gateway;
mod llm_proxy;
mod report;
mod service;

/// The folder of the workspace.
fn root() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
