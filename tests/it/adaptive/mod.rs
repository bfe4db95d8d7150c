//! Adaptive limits.

mod corners;
mod laws;
