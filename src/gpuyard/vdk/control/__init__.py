"""The part of VDK's control service that its command line uses, served by the manager. Start at face.py."""
