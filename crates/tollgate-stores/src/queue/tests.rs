//! The queue over a store of reference that fails in all ways: clients at random, and single cases.

mod client;
mod corners;
mod fake;
