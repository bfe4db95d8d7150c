//! Laws by which a limit finds itself, and what they are fed: no clock, no atomics, no limiter.

mod aimd;
mod gradient;
mod gradient2;
mod headroom;
mod law;
mod sampler;
mod trend;
mod vegas;

pub use aimd::Aimd;
pub use gradient::Gradient;
pub use gradient2::Gradient2;
pub(crate) use headroom::Headroom;
pub use law::{LimitLaw, Sample};
pub(crate) use sampler::Sampler;
pub use trend::Trend;
pub use vegas::Vegas;
