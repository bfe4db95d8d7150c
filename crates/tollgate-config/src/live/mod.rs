//! Policies that run: their limiters, their loads, and how another version comes in force.

mod leg;
mod legs;
mod load;
mod reload;
mod status;

pub(crate) use leg::{Built, build_legs};
pub use legs::ReloadableLegs;
pub use reload::{Reload, ReloadablePolicy};
pub(crate) use reload::{apply_spec, build_policy};
pub use status::LegStatus;
