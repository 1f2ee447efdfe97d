//! Tests that need no rights.

mod dependencies;
mod sources;
mod standing;
mod tiers;
