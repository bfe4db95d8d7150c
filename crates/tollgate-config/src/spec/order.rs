//! The order of a queue, in a file: a table with a kind.

use super::ConfigError;
use crate::file::{Node, read_kind};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;
use std::num::NonZeroU32;
use tollgate::Order;

/// An order and its numbers.
#[derive(Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(rename = "Order", tag = "kind")
)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum OrderSpec {
    Fifo {},
    Lifo {},
    Priority { classes: u64, patience: NonZeroU32 },
    RoundRobin {},
    Shares { weights: Vec<NonZeroU32> },
}

impl OrderSpec {
    fn order(self) -> Result<Order, ConfigError> {
        Ok(match self {
            Self::Fifo {} => Order::Fifo,
            Self::Lifo {} => Order::Lifo,
            Self::Priority { classes, patience } => {
                if !(1..=32).contains(&classes) {
                    return Err(ConfigError::given("classes", classes, "a whole number of 1 to 32"));
                }
                let (classes, patience) = (classes as u8, patience.get());
                Order::Priority { classes, patience }
            }
            Self::RoundRobin {} => Order::RoundRobin,
            Self::Shares { weights } => Order::Shares(weights.into_iter().map(NonZeroU32::get).collect()),
        })
    }
}

pub(crate) fn serialize<S: Serializer>(order: &Order, serializer: S) -> Result<S::Ok, S::Error> {
    let table = match order {
        Order::Lifo => json!({ "kind": "lifo" }),
        Order::Priority { classes, patience } => {
            json!({ "kind": "priority", "classes": classes, "patience": patience })
        }
        Order::RoundRobin => json!({ "kind": "round-robin" }),
        Order::Shares(weights) => json!({ "kind": "shares", "weights": weights }),
        _ => json!({ "kind": "fifo" }),
    };
    table.serialize(serializer)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Order, D::Error> {
    let read = read_kind(Node::deserialize(deserializer)?, "kind, ");
    read.and_then(OrderSpec::order).map_err(D::Error::custom)
}
