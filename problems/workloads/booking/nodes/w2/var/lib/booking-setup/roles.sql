CREATE ROLE booking LOGIN PASSWORD '@BOOKING_PASSWORD@';
ALTER ROLE booking SET statement_timeout = '4s';
ALTER ROLE booking SET lock_timeout = '3s';
CREATE ROLE replicator LOGIN REPLICATION PASSWORD '@REPLICATOR_PASSWORD@';
CREATE DATABASE booking OWNER booking;
REVOKE CONNECT, TEMPORARY ON DATABASE booking FROM PUBLIC;
SELECT pg_create_physical_replication_slot('w3', true);
