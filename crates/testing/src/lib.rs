//! precast-testing
