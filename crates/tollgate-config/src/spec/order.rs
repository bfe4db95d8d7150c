//! The order of a queue, in a file.

use serde::{Deserialize, Serialize};
use tollgate::Order;

/// `#[serde(with = "OrderSpec")]`: an order and its numbers.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Order"))]
#[serde(remote = "Order", rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub(crate) enum OrderSpec {
    Fifo,
    Lifo,
    Priority { classes: u8, patience: u32 },
    RoundRobin,
    Shares(Vec<u32>),
}
