//! Laws by which a limit finds itself, and what they are fed: no clock, no atomics, no limiter.

mod aimd;
mod gradient;
mod headroom;
mod law;
mod sampler;
mod vegas;

pub use aimd::Aimd;
pub use gradient::Gradient2;
pub(crate) use headroom::Headroom;
pub use law::{LimitLaw, Sample};
pub(crate) use sampler::Sampler;
pub use vegas::Vegas;
