//! Adaptive limits.

mod corners;
mod laws;
mod rates;
