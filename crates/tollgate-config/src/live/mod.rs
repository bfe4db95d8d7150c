//! Policies that run: their limiters, their loads, and how another version comes in force.

mod built;
mod changes;
mod legs;
mod load;
mod reload;
mod status;
mod unit;

pub(crate) use built::build_legs;
pub use changes::Changes;
pub use legs::ReloadableLegs;
pub use reload::{Reload, ReloadablePolicy};
pub(crate) use reload::{apply_spec, build_policy};
pub use status::LegStatus;
pub(crate) use unit::Built;
