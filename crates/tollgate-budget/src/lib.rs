//! Budgets whose price is known afterwards: reserved by an estimate, metered, settled to the true cost.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod estimate;

pub use estimate::{Estimates, EstimatesBuilder, EstimatesError};
