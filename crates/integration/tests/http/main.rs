//! Limits in front of HTTP and gRPC services, and their metrics.

mod axum_limits;
mod axum_nested;
mod axum_room;
mod diary;
mod observe;
mod tower_charge;
mod tower_ends;
mod tower_idle;
mod tower_layer;
mod tower_ready;
mod tower_room;
mod tower_wire;
