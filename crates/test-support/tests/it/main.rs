//! Tests that need no privileges.

mod dependencies;
mod sources;
mod standing;
mod tiers;
