//! Limits for HTTP and gRPC services: one [tower](https://docs.rs/tower) layer for any limiter or policy of
//! [`tollgate`], for servers and for clients.
//!
//! | you want to | use |
//! |---|---|
//! | refuse requests at once that a limiter does not admit | [`LimitLayer::new`] |
//! | let requests wait in a policy's queue | [`LimitLayer::waiting`] |
//! | give refused clients a retry time, and honour it | [`LimitLayer::waiting_room`] with a [`WaitingRoom`] |
//! | limit each client on its own | [`LimitLayer::keyed`], [`LimitLayer::keyed_waiting`]; millions in little memory: [`LimitLayer::keyed_rate`] |
//! | charge requests differently | [`LimitLayer::cost`]; by their bodies: the module `axum` |
//! | correct the charge once the true cost is known | [`LimitLayer::settling`] with [`Charge`] |
//! | feed a breaker or an adaptive limit, in a server | nothing: [`StatusCodes`] does; [`GrpcCodes`] for gRPC |
//! | the same, before an upstream | [`LimitLayer::classify`] with [`ClientStatusCodes`] or [`ClientGrpcCodes`] |
//! | classify the ends of requests yourself | [`LimitLayer::classify_status`], [`Classify`] |
//! | answer refusals with a response | [`LimitLayer::refuse_with`]; with headers and problem details: the module `axum` |
//! | keep to the limits that an upstream states | `UpstreamLayer` of the module `client` |
//! | record admissions and refusals | `LimitLayer::observed`, with the feature `metrics` or `tracing` |
//!
//! The permit of a request lives as long as the body of its response: [`LimitBody`].
//!
//! # Features
//!
//! | feature | what it adds |
//! |---|---|
//! | `axum` | keys of requests, refusals as responses, and with it axum 0.8, sfv and serde_json |
//! | `client` | the limits of an upstream for its clients, and with it sfv, serde_json, httpdate, jiff and base64 |
//! | `metrics` | `LimitLayer::observed` through the facade metrics 0.24 |
//! | `tracing` | `LimitLayer::observed` with events of tracing 0.1 |
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub mod axum;
mod body;
mod charge;
mod classify;
#[cfg(feature = "client")]
#[cfg_attr(docsrs, doc(cfg(feature = "client")))]
pub mod client;
mod future;
mod gate;
mod layer;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod observed;
mod refused;
mod request_parts;
mod respond;
mod waiting_room;

#[cfg(test)]
use tollgate_conformance::inputs as laws;

pub use body::LimitBody;
pub use charge::{Charge, ChargeError};
pub use classify::{ByStatus, Classify, ClientGrpcCodes, ClientStatusCodes, GrpcCodes, ResponseOutcome, StatusCodes};
pub use future::LimitFuture;
pub use gate::{
    Admission, CostFn, ExemptGate, ExtractKey, Gate, ImmediateGate, KeyedGate, KeyedQueueGate, KeyedRateGate, OneCall,
    QueueGate, RateOfKey, Waited, WithCost,
};
pub use layer::{LimitLayer, LimitService};
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "metrics", feature = "tracing"))))]
pub use observed::ObservedGate;
pub use refused::{Refused, status_of};
pub use request_parts::RequestParts;
pub use respond::{AsError, AsResponse, LimitError, Respond};
pub use waiting_room::{RoomFull, WaitingRoom, WaitingRoomError, WaitingRoomGate, WaitingRoomStats};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
