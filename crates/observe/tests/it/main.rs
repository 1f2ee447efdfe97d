//! Tests that need no privileges.

mod journeys;
