//! The client side: one layer by which all callers of an upstream keep to its limits, and the dialects in which well-known APIs state them.
//!
//! [`UpstreamLayer`] admits the requests of a client of tower, and with the feature `reqwest` those of a client of reqwest. Each response is read by a dialect:
//!
//! | you call | use |
//! |---|---|
//! | an API that sends `Retry-After`, `RateLimit` or `X-RateLimit` fields | [`Standard`] |
//! | GitHub | [`GitHub`] |
//! | OpenAI, or an API that is compatible with it | [`OpenAi`] |
//! | Anthropic | [`Anthropic`] |
//! | Shopify | [`Shopify`] |
//! | a service of gRPC | [`Grpc`] |
//! | another | a [`Dialect`] of your own: a closure is one |

mod deadline;
mod dialect;
mod dialects;
mod grpc;
mod layer;
#[cfg(test)]
mod recorded;
#[cfg(feature = "reqwest")]
mod reqwest;
mod values;

pub use dialect::{DEFAULT_CAP, Dialect, ResponseParts};
pub use dialects::{
    Anthropic, CONTENT_BYTES, GitHub, INPUT_TOKENS, OUTPUT_TOKENS, OpenAi, POINTS, Shopify, Standard, TOKENS,
};
pub use grpc::Grpc;
pub use layer::{UpstreamBody, UpstreamFuture, UpstreamLayer, UpstreamService};
