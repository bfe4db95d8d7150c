//! The client side: what an upstream says about its limits, in the dialects of well-known APIs.
//!
//! | you call | use |
//! |---|---|
//! | an API that sends `Retry-After`, `RateLimit` or `X-RateLimit` fields | [`Standard`] |
//! | GitHub | [`GitHub`] |
//! | OpenAI, or an API that is compatible with it | [`OpenAi`] |
//! | Anthropic | [`Anthropic`] |
//! | Shopify | [`Shopify`] |
//! | another | a [`Dialect`] of your own: a closure is one |

mod dialect;
mod dialects;
#[cfg(test)]
mod recorded;
mod values;

pub use dialect::{DEFAULT_CAP, Dialect, ResponseParts};
pub use dialects::{
    Anthropic, CONTENT_BYTES, GitHub, INPUT_TOKENS, OUTPUT_TOKENS, OpenAi, POINTS, Shopify, Standard, TOKENS,
};
